/** A chart: axes, a grid, marks between them, and the words for the mark that is pointed at or that the arrow keys lead to. */
import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import type { Axis } from "./axes";
import { box } from "./marks";
import { apart, BOLD_PX, LETTER_PX, type Scale, type Tick, toPixel, toValue } from "./scales";
import { useWidth } from "./width";

/** Where the marks are, in pixels. */
export interface Frame {
  readonly x: Scale;
  readonly y: Scale;
  readonly left: number;
  readonly right: number;
  readonly top: number;
  readonly bottom: number;
}

/** A range of x and one of y, in data. */
export type Stretch = readonly [number, number];

interface ChartProps {
  /** What the chart shows, for those who cannot see it. */
  label: string;
  height: number;
  x: Axis;
  y: Axis;
  /** Of each mark, in data, along x: the arrow keys go through them. y is null where there is only x. */
  points: readonly (readonly [x: number, y: number | null])[];
  /** The words for the mark of this index; null: none is pointed at. */
  describe: (index: number | null) => string;
  /** A mark is pointed at from so many pixels around it, and a rectangle is dragged; left out: from anywhere above and
   * below it, and a stretch of x is. */
  reach?: number;
  /** Which mark is at this place, where marks are no points. */
  find?: (x: number, y: number, frame: Frame) => number;
  onSelect?: ((x: Stretch, y: Stretch) => void) | undefined;
  onPick?: (index: number) => void;
  /** Draws the marks. */
  children: (frame: Frame) => ComponentChildren;
}

const TICK_PX = 34;
const CLICK_PX = 4;
const RAIL_PX = 16;
const FAR = 10;
const STEPS: Readonly<Record<string, number>> = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: FAR, PageDown: -FAR, Home: -Infinity, End: Infinity };

export function Chart({ label, height, x, y, points, describe, reach, find, onSelect, onPick, children }: ChartProps) {
  // Below the plot is a rail of the marks that have only x.
  const rail = points.some(([, y]) => y === null);
  const [element, width] = useWidth<HTMLDivElement>();
  const [at, point] = useState<number | null>(null);
  const [held, hold] = useState<number | null>(null);
  const [drag, setDrag] = useState<{ from: Stretch; to: Stretch } | null>(null);
  const layout = useMemo(() => (width === 0 ? null : layoutOf(x, y, width, height - (rail ? RAIL_PX : 0))), [x, y, width, rail]);
  // What the pointer does draws no mark anew.
  const marks = useMemo(() => layout && children(layout.frame), [layout, children]);
  const frame = layout?.frame;
  const index = at !== null && at < points.length ? at : null;
  const words = describe(index);
  const place = (event: PointerEvent): Stretch => [event.offsetX, event.offsetY];
  const look = ({ offsetX, offsetY }: PointerEvent) => {
    const found = find ? find(offsetX, offsetY, frame!) : nearest(points, frame!, offsetX, reach === undefined ? null : offsetY, reach ?? Infinity);
    point(found < 0 ? null : found);
  };
  const lift = () => {
    setDrag(null);
    if (drag && onSelect && Math.max(...drag.to.map((end, side) => Math.abs(end - drag.from[side]!))) >= CLICK_PX) {
      const stretch = (scale: Scale, side: 0 | 1) => upwards(toValue(scale, drag.from[side]), toValue(scale, drag.to[side]));
      onSelect(stretch(frame!.x, 0), stretch(frame!.y, 1));
    } else if (index !== null) onPick?.(index);
  };
  const press = (event: KeyboardEvent) => {
    const step = STEPS[event.key];
    if (step !== undefined) {
      if (onSelect && reach === undefined) hold(event.shiftKey ? (held ?? index) : null);
      point(Math.max(0, Math.min(points.length - 1, (index ?? (step > 0 ? -1 : points.length)) + step)));
    } else if (event.key === "Enter" && index !== null && held !== null && held !== index) {
      onSelect!(upwards(points[held]![0], points[index]![0]), [0, 0]);
      hold(null);
    } else if (event.key === "Enter" && index !== null) onPick?.(index);
    else if (event.key === "Escape" && index !== null) point(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const heldPx = (index: number): Stretch => [toPixel(frame!.x, points[index]![0]), 0];
  const [from, to] = drag ? [drag.from, drag.to] : held !== null && index !== null ? [heldPx(held), heldPx(index)] : [];
  return (
    <figure class="plot">
      <div ref={element} class="chart-box" style={{ height: `${height}px` }}>
        {frame && (
          <svg
            width={width}
            height={height}
            aria-label={label}
            {...(points.length === 0
              ? { role: "img" as const }
              : { role: "slider" as const, tabIndex: 0, "aria-roledescription": "chart", "aria-valuemin": 1, "aria-valuemax": points.length, "aria-valuenow": (index ?? 0) + 1, "aria-valuetext": words })}
            onKeyDown={press}
            onBlur={() => hold(null)}
            onPointerDown={(event) => {
              if (event.button > 0) return;
              event.currentTarget.setPointerCapture(event.pointerId);
              look(event);
              setDrag({ from: place(event), to: place(event) });
            }}
            onPointerMove={(event) => {
              if (drag && onSelect) setDrag({ from: drag.from, to: place(event) });
              else look(event);
            }}
            onPointerUp={lift}
            onPointerCancel={() => setDrag(null)}
            onPointerLeave={() => point(null)}
          >
            <Axes {...layout} across={x.title} up={y.title} height={height} rail={rail} />
            {marks}
            {index !== null && <Pointed at={points[index]!} frame={frame} />}
            {from && to && (
              <path class="brushed" d={reach === undefined ? box(from[0], frame.top, to[0] - from[0], frame.bottom - frame.top) : box(from[0], from[1], to[0] - from[0], to[1] - from[1])} />
            )}
          </svg>
        )}
      </div>
      <p class="chart-note" aria-hidden="true">{words}</p>
    </figure>
  );
}

/** The height of the marks that have only x. */
export function onRail({ bottom }: Frame): number {
  return bottom + RAIL_PX - 3;
}

const upwards = (one: number, other: number): Stretch => [Math.min(one, other), Math.max(one, other)];

function Pointed({ at: [x, y], frame }: { at: readonly [number, number | null]; frame: Frame }) {
  const across = toPixel(frame.x, x);
  if (y === null) return <line class="cursor" x1={across} x2={across} y1={frame.top} y2={frame.bottom} />;
  return <circle class="pointed" cx={across} cy={toPixel(frame.y, y)} r={6} />;
}

/** By x, or by both: a mark without y lies on the rail. -1: none is that near. */
function nearest(points: ChartProps["points"], frame: Frame, atX: number, atY: number | null, reach: number): number {
  const { x, y } = frame;
  let [found, least] = [-1, reach];
  points.forEach((point, index) => {
    const away = Math.hypot(toPixel(x, point[0]) - atX, atY === null ? 0 : (point[1] === null ? onRail(frame) : toPixel(y, point[1])) - atY);
    if (away < least) [found, least] = [index, away];
  });
  return found;
}

function layoutOf(x: Axis, y: Axis, width: number, height: number) {
  const top = y.title ? 26 : 10;
  const bottom = height - (x.title ? 38 : 22);
  const up = y.scale(bottom, top);
  const yTicks = spread(y.ticks(up, (bottom - top) / TICK_PX), up);
  const longest = Math.max(2, ...yTicks.map(([, words]) => words.length));
  // Of long words on the left axis a narrow chart keeps room for its marks.
  const left = Math.min(longest * LETTER_PX + 10, width * 0.35);
  const across = x.scale(left, width - 14);
  let xTicks: readonly Tick[] = [];
  for (let about = (width - left) / 46; about >= 1; about /= 1.3) {
    const all = x.ticks(across, about);
    xTicks = apart(all, across);
    if (xTicks.length === all.length) break;
  }
  const frame: Frame = { x: across, y: up, left, right: width - 14, top, bottom };
  return { frame, xTicks, yTicks };
}

/** Those that do not overlap up a side. */
function spread(all: readonly Tick[], scale: Scale): readonly Tick[] {
  const room = Math.abs(scale.to - scale.from) / Math.max(1, all.length - 1);
  const every = Math.ceil(14 / Math.max(1, room));
  return all.filter((_, at) => at % every === 0);
}

interface AxesProps extends ReturnType<typeof layoutOf> {
  across: string;
  up: string;
  height: number;
  rail: boolean;
}

function Axes({ frame, xTicks, yTicks, across, up, height, rail }: AxesProps) {
  const { x, y, left, right, top } = frame;
  return (
    <g aria-hidden="true">
      {rail && (
        <g data-testid="rail">
          <line class="rail" x1={left} x2={right} y1={onRail(frame)} y2={onRail(frame)} />
          <text x={left - 6} y={onRail(frame) + 4} text-anchor="end">none</text>
        </g>
      )}
      <path class="grid" d={yTicks.map(([value]) => `M${left} ${toPixel(y, value).toFixed(1)}H${right}`).join("")} />
      <g class="y-ticks" text-anchor="end">
        {yTicks.map(([value, words]) => (
          <text key={value} x={left - 6} y={toPixel(y, value) + 4}>{words}</text>
        ))}
      </g>
      <g class="x-ticks" text-anchor="middle">
        {xTicks.map(([value, words]) => (
          <text key={value} x={toPixel(x, value)} y={height - (across ? 22 : 6)}>{words}</text>
        ))}
      </g>
      {across && <text x={(left + right) / 2} y={height - 5} text-anchor="middle">{across}</text>}
      {up && <text class="y-title" x={2} y={Math.max(11, top - 8)}>{up}</text>}
    </g>
  );
}

/** Words beside a mark, readable over other marks; to the left of it where there is no room to its right. */
export function Label({ x, y, frame, children }: { x: number; y: number; frame: Frame; children: string }) {
  const long = children.length * BOLD_PX;
  const left = x + 8 + long > frame.right;
  return (
    <text class="mark-label" x={left ? Math.max(x - 8, frame.left + long) : x + 8} y={Math.max(frame.top + 6, y)} text-anchor={left ? "end" : "start"}>{children}</text>
  );
}
