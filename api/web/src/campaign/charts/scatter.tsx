/** Speed against memory: what more memory buys, and where the device ends. */
import { useCallback, useMemo, useState } from "preact/hooks";
import type { CampaignView, TrialBrief } from "../../api/types";
import { bareObjective, bytes, number, objective } from "../../format";
import { go, href } from "../../router";
import { Card } from "../../ui/basics";
import { Canvas, useWidth } from "./canvas";
import { setConditions } from "../data/conditions";
import { frontOf, type Measured, measured } from "../data/front";
import type { Goal } from "../data/goal";
import { usePalette } from "./palette";
import { extent, linear, type Scale, ticks, toPixel, toValue } from "./scales";

const HEIGHT = 240;
const LEFT = 54;
const RIGHT = 14;
const TOP = 10;
const BOTTOM = 34;
const REACH = 12;
const GIB = 2 ** 30;
/** A device with so many times what was used is not drawn to scale: the trials would lie in one heap. */
const FAR = 4;

interface ScatterProps {
  campaign: CampaignView;
  goal: Goal;
  trials: readonly TrialBrief[];
  shown: ReadonlySet<TrialBrief>;
}

export function Scatter({ campaign, goal, trials, shown }: ScatterProps) {
  const [box, width] = useWidth<HTMLDivElement>();
  const [pointed, point] = useState<Measured | null>(null);
  const [drag, setDrag] = useState<{ from: [number, number]; to: [number, number] } | null>(null);
  const palette = usePalette();
  const dots = useMemo(() => measured(trials), [trials]);
  const visible = useMemo(() => dots.filter((dot) => shown.has(dot)), [dots, shown]);
  const front = useMemo(() => frontOf(visible, goal), [visible, goal]);
  const limit = campaign.spec.cluster.device?.memory_bytes ?? null;
  const scales = useMemo(() => scalesOf(dots, limit, width), [dots, limit, width]);
  const draw = useCallback(
    (context: CanvasRenderingContext2D) => {
      if (scales === null) return;
      for (const [set, fill] of [[dots.filter((dot) => !shown.has(dot)), palette.line], [visible, palette.accent]] as const) {
        context.fillStyle = fill;
        context.globalAlpha = set === visible ? 0.55 : 1;
        for (const dot of set) {
          context.beginPath();
          context.arc(toPixel(scales.x, dot.peak_memory_bytes), toPixel(scales.y, dot.objective.value), 3, 0, 7);
          context.fill();
        }
      }
    },
    [dots, visible, shown, scales, palette],
  );
  const near = (event: PointerEvent): Measured | null => (scales === null ? null : nearestDot(visible, scales, event.offsetX, event.offsetY));
  const lift = () => {
    if (drag === null || scales === null) return;
    const { from, to } = drag;
    setDrag(null);
    if (Math.abs(to[0] - from[0]) > 4 || Math.abs(to[1] - from[1]) > 4) {
      setConditions({ memory: between(scales.x, from[0], to[0]), objective: between(scales.y, from[1], to[1]) });
    } else if (pointed) go(href({ page: "trial", id: campaign.id, number: pointed.number }));
  };
  return (
    <Card title={<>Speed against memory <span class="muted">{goal.label}</span></>} testid="scatter">
      <figure class="plot">
        <div ref={box} class="chart-box" style={{ height: `${HEIGHT}px` }}>
          <Canvas width={width} height={HEIGHT} draw={draw} />
          {scales && (
            <svg
              width={width}
              height={HEIGHT}
              role="img"
              aria-label={`${goal.label} against peak memory of ${visible.length} trials; ${front.length} of them on the front: ${front.slice(-3).map((one) => `trial ${one.number}`).join(", ")}`}
              onPointerDown={(event) => {
                event.currentTarget.setPointerCapture(event.pointerId);
                setDrag({ from: [event.offsetX, event.offsetY], to: [event.offsetX, event.offsetY] });
              }}
              onPointerMove={(event) => (drag ? setDrag({ ...drag, to: [event.offsetX, event.offsetY] }) : point(near(event)))}
              onPointerUp={lift}
              onPointerCancel={() => setDrag(null)}
              onPointerLeave={() => point(null)}
            >
              <Axes scales={scales} unit={goal.unit} limit={limit} />
              <path class="front" d={pathOf(front, scales)} />
              {front.map((one) => (
                <circle key={one.number} class="front-dot" cx={toPixel(scales.x, one.peak_memory_bytes)} cy={toPixel(scales.y, one.objective.value)} r={4} />
              ))}
              {pointed && <circle class="pointed" cx={toPixel(scales.x, pointed.peak_memory_bytes)} cy={toPixel(scales.y, pointed.objective.value)} r={6} />}
              {drag && <rect class="brushed" x={Math.min(drag.from[0], drag.to[0])} y={Math.min(drag.from[1], drag.to[1])} width={Math.abs(drag.to[0] - drag.from[0])} height={Math.abs(drag.to[1] - drag.from[1])} />}
            </svg>
          )}
          {width > 0 && scales === null && <p class="chart-none muted">Nothing was measured yet.</p>}
        </div>
        <p class="chart-note" aria-hidden="true">
          {pointed ? `#${pointed.number} ${pointed.plan_key}: ${objective(pointed.objective.value, goal.unit)}, ${bytes(pointed.peak_memory_bytes)}` : "The front is joined. Drag to filter, click to open."}
        </p>
      </figure>
    </Card>
  );
}

interface Scales {
  readonly x: Scale;
  readonly y: Scale;
}

function scalesOf(dots: readonly Measured[], limit: number | null, width: number): Scales | null {
  const speeds = extent(dots.map((dot) => dot.objective.value));
  const fullest = extent(dots.map((dot) => dot.peak_memory_bytes))?.[1];
  if (speeds === null || fullest === undefined || width === 0) return null;
  const most = limit !== null && limit < fullest * FAR ? Math.max(fullest, limit) : fullest;
  return {
    x: linear(0, most * 1.03, LEFT, width - RIGHT),
    y: linear(speeds[0], speeds[1], HEIGHT - BOTTOM, TOP),
  };
}

function Axes({ scales: { x, y }, unit, limit }: { scales: Scales; unit: string; limit: number | null }) {
  const step = x.high > 4 * GIB ? GIB : 2 ** 20;
  return (
    <g class="axes" aria-hidden="true">
      {ticks(y.low, y.high, 4).map((value) => (
        <g key={value}>
          <line class="grid" x1={LEFT} x2={x.to} y1={toPixel(y, value)} y2={toPixel(y, value)} />
          <text x={LEFT - 6} y={toPixel(y, value) + 4} text-anchor="end">{bareObjective(value, unit)}</text>
        </g>
      ))}
      {ticks(x.low / step, x.high / step, (x.to - LEFT) / 60).map((value) => (
        <text key={value} x={toPixel(x, value * step)} y={HEIGHT - BOTTOM + 15} text-anchor="middle">{number(value)}</text>
      ))}
      <text x={(LEFT + x.to) / 2} y={HEIGHT - 4} text-anchor="middle">peak memory of tensors, {step === GIB ? "GiB" : "MiB"}</text>
      {limit !== null && limit > x.high && (
        <text transform={`translate(${x.to - 2},${HEIGHT - BOTTOM - 4}) rotate(-90)`}>the device, far to the right: {bytes(limit)}</text>
      )}
      {limit !== null && limit <= x.high && (
        <g>
          <line class="limit" x1={toPixel(x, limit)} x2={toPixel(x, limit)} y1={TOP} y2={HEIGHT - BOTTOM} />
          <text transform={`translate(${toPixel(x, limit) - 5},${HEIGHT - BOTTOM - 4}) rotate(-90)`}>the device: {bytes(limit)}</text>
        </g>
      )}
    </g>
  );
}

function pathOf(front: readonly Measured[], { x, y }: Scales): string {
  return front
    .map((one, at) => {
      const [across, up] = [toPixel(x, one.peak_memory_bytes).toFixed(1), toPixel(y, one.objective.value).toFixed(1)];
      return at === 0 ? `M${across},${up}` : `H${across}V${up}`;
    })
    .join("");
}

function nearestDot(dots: readonly Measured[], { x, y }: Scales, atX: number, atY: number): Measured | null {
  let found: Measured | null = null;
  let least = REACH * REACH;
  for (const dot of dots) {
    const away = (toPixel(x, dot.peak_memory_bytes) - atX) ** 2 + (toPixel(y, dot.objective.value) - atY) ** 2;
    if (away < least) [found, least] = [dot, away];
  }
  return found;
}

function between(scale: Scale, one: number, other: number) {
  const ends = [toValue(scale, one), toValue(scale, other)];
  return { kind: "range", low: Math.min(...ends), high: Math.max(...ends) } as const;
}
