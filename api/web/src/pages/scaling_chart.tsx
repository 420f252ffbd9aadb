/** One quantity against the number of nodes, which are apart by doublings: measured as a line, projected dashed. */
import { useWidth } from "../campaign/charts/canvas";
import { extent, linear, ticks, toPixel, type Scale } from "../campaign/charts/scales";

/** low and high: the ends of the interval. name: the campaign. line: the points of one (a model) are joined. */
export interface Point {
  nodes: number;
  name: string;
  line: string;
  value: number;
  low: number;
  high: number;
}

interface ChartProps {
  label: string;
  measured: Point[];
  projected: Point[];
  /** A value without its unit, which the heading names. */
  format: (value: number) => string;
  unit: string;
  testid: string;
}

const HEIGHT = 240;
const MARGIN = { left: 56, right: 16, top: 12, bottom: 40 };

export function ScalingChart({ label, measured, projected, format, unit, testid }: ChartProps) {
  const [box, width] = useWidth<HTMLDivElement>();
  const all = [...measured, ...projected];
  const withUnit = (value: number) => (unit ? `${format(value)} ${unit}` : format(value));
  return (
    <figure class="scaling" data-testid={testid}>
      <div ref={box} style={{ height: `${HEIGHT}px` }}>
        {width > 0 && all.length > 0 && (
          <svg width={width} height={HEIGHT} role="img" aria-label={inWords(label, measured, projected, withUnit)}>
            <Axes all={all} width={width} format={format} />
            <Series points={projected} all={all} width={width} kind="projected" format={withUnit} />
            <Series points={measured} all={all} width={width} kind="measured" format={withUnit} />
          </svg>
        )}
        {all.length === 0 && <p class="muted">None of these campaigns has measured a setting yet.</p>}
      </div>
      <figcaption class="row small">
        <span class="scaling-key measured">measured</span>
        <span class="scaling-key projected">projected from the smallest</span>
        <span class="muted">bars: intervals</span>
      </figcaption>
    </figure>
  );
}

function inWords(label: string, measured: Point[], projected: Point[], format: (value: number) => string): string {
  const list = (points: Point[]) => points.map(({ nodes, value }) => `${format(value)} on ${nodes} nodes`).join(", ");
  return `${label}: measured ${list(measured) || "nothing"}${projected.length ? `; projected ${list(projected)}` : ""}`;
}

/** Doublings across, from the smallest to the largest; upwards from zero. */
function scales(all: Point[], width: number): { x: Scale; y: Scale } {
  const [fewest, most] = extent(all.map(({ nodes }) => Math.log2(nodes))) ?? [0, 1];
  const [, top] = extent(all.map(({ high }) => high)) ?? [0, 1];
  return {
    x: linear(fewest - 0.15, most + 0.15, MARGIN.left, width - MARGIN.right),
    y: linear(0, top * 1.05, HEIGHT - MARGIN.bottom, MARGIN.top),
  };
}

function Axes({ all, width, format }: { all: Point[]; width: number; format: (value: number) => string }) {
  const { x, y } = scales(all, width);
  const nodes = [...new Set(all.map((point) => point.nodes))].sort((a, b) => a - b);
  return (
    <g class="scaling-axes">
      {ticks(y.low, y.high, 5).map((value) => (
        <g key={value}>
          <line x1={MARGIN.left} x2={width - MARGIN.right} y1={toPixel(y, value)} y2={toPixel(y, value)} />
          <text x={MARGIN.left - 8} y={toPixel(y, value) + 4} text-anchor="end">
            {format(value)}
          </text>
        </g>
      ))}
      {nodes.map((number) => (
        <text key={number} x={toPixel(x, Math.log2(number))} y={HEIGHT - MARGIN.bottom + 17} text-anchor="middle">
          {number}
        </text>
      ))}
      <text x={(MARGIN.left + width - MARGIN.right) / 2} y={HEIGHT - 6} text-anchor="middle">
        nodes
      </text>
    </g>
  );
}

/** The points of each line by the number of nodes; of several on one number the best. */
export function lines<P extends Point>(points: P[]): P[][] {
  const found = new Map<string, Map<number, P>>();
  for (const point of [...points].sort((a, b) => a.nodes - b.nodes)) {
    const line = found.get(point.line) ?? new Map<number, P>();
    const rival = line.get(point.nodes);
    if (!rival || rival.value < point.value) line.set(point.nodes, point);
    found.set(point.line, line);
  }
  return [...found.values()].map((line) => [...line.values()]);
}

interface SeriesProps {
  points: Point[];
  all: Point[];
  width: number;
  kind: "measured" | "projected";
  format: (value: number) => string;
}

function Series({ points, all, width, kind, format }: SeriesProps) {
  const { x, y } = scales(all, width);
  const at = points.map((point) => ({ ...point, px: toPixel(x, Math.log2(point.nodes)), py: toPixel(y, point.value) }));
  return (
    <g class={`scaling-series ${kind}`}>
      {lines(at).map((line) => (
        <polyline key={line[0]?.line} points={line.map(({ px, py }) => `${px},${py}`).join(" ")} />
      ))}
      {at.map((point) => (
        <g key={point.name}>
          <line class="scaling-bar" x1={point.px} x2={point.px} y1={toPixel(y, point.low)} y2={toPixel(y, point.high)} />
          <circle cx={point.px} cy={point.py} r={kind === "measured" ? 4 : 3.5}>
            <title>{`${point.name}, ${point.nodes} nodes: ${format(point.value)} ${kind} (${format(point.low)} to ${format(point.high)})`}</title>
          </circle>
        </g>
      ))}
    </g>
  );
}
