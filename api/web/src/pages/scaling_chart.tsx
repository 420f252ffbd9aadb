/** One quantity against the number of nodes, which are apart by doublings: measured as a line, projected dashed. */
import { doublings, numbers } from "../campaign/charts/axes";
import { Chart, type Frame } from "../campaign/charts/chart";
import { line as pathOf, marks, type Point as Place } from "../campaign/charts/marks";
import { toPixel } from "../campaign/charts/scales";

/** low and high: the ends of the interval, equal where nothing is known of it. name: the campaign. line: the points of one
 * (a model) are joined. note: what has to be known of the value. */
export interface Point {
  nodes: number;
  name: string;
  line: string;
  value: number;
  low: number;
  high: number;
  note?: string;
}

interface ChartProps {
  label: string;
  measured: Point[];
  projected: Point[];
  /** A value without its unit, which the heading names. */
  format: (value: number, digits?: number) => string;
  unit: string;
  /** Of what no device measured: "simulated" stands for "measured". */
  simulated?: boolean;
  /** The value that all others are shares of: a line across. */
  whole?: number;
  testid: string;
}

export function ScalingChart({ label, measured, projected, format, unit, simulated = false, whole, testid }: ChartProps) {
  const word = simulated ? "simulated" : "measured";
  const all = [...measured.map((point) => ({ ...point, word })), ...projected.map((point) => ({ ...point, word: "projected" }))].sort((a, b) => a.nodes - b.nodes);
  const withUnit = (value: number) => (unit ? `${format(value)} ${unit}` : format(value));
  const list = (points: Point[]) => points.map(({ nodes, value }) => `${withUnit(value)} on ${nodes} nodes`).join(", ");
  const describe = (index: number | null) => {
    if (index === null) return `${word} ${list(measured) || "nothing"}${projected.length ? `; projected ${list(projected)}` : ""}`;
    const { name, nodes, value, low, high, word: how, note } = all[index]!;
    return `${name}, ${nodes} nodes: ${withUnit(value)} ${how}${low < high ? ` (${format(low)} to ${format(high)})` : ""}${note ? `. ${note}` : ""}`;
  };
  const draw = (frame: Frame) => (
    <>
      {whole !== undefined && <path class="baseline" d={`M${frame.left} ${toPixel(frame.y, whole)}H${frame.right}`} />}
      <Series points={projected} frame={frame} kind="projected" />
      <Series points={measured} frame={frame} kind="measured" />
    </>
  );
  return (
    <div class="scaling" data-testid={testid}>
      {all.length === 0 ? (
        <p class="muted">None of these campaigns has measured a plan yet.</p>
      ) : (
        <Chart
          label={`${label}: ${describe(null)}`}
          height={240}
          x={doublings(all.map(({ nodes }) => nodes), "nodes")}
          y={numbers([whole ?? 0, ...all.flatMap(({ value, high }) => [value, high])], { title: unit, format, fromZero: true, room: 0.05 })}
          points={all.map(({ nodes, value }) => [nodes, value])}
          describe={describe}
          reach={20}
        >
          {draw}
        </Chart>
      )}
      <div class="row small">
        <span class="scaling-key measured">{word}</span>
        {projected.length > 0 && <span class="scaling-key projected">projected from the smallest</span>}
        {all.some(({ low, high }) => low < high) && <span class="muted">bars: intervals</span>}
      </div>
    </div>
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

function Series({ points, frame: { x, y }, kind }: { points: Point[]; frame: Frame; kind: "measured" | "projected" }) {
  const at = ({ nodes, value }: Point): Place => [toPixel(x, nodes), toPixel(y, value)];
  return (
    <g class={`scaling-series ${kind}`} data-marks={points.length}>
      <path class="scaling-line" d={lines(points).map((line) => pathOf(line.map(at))).join("")} />
      <path class="scaling-bar" d={points.filter(({ low, high }) => low < high).map(({ nodes, low, high }) => `M${toPixel(x, nodes)} ${toPixel(y, low)}V${toPixel(y, high)}`).join("")} />
      <path class="scaling-mark" d={marks(points.map(at), kind === "measured" ? "disc" : "diamond")} />
    </g>
  );
}
