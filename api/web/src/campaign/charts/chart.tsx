/** A chart: axes, a grid, marks between them, and the words for the mark that is pointed at or that the arrow keys lead to. */
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Axis } from "./axes";
import { useWidth } from "./canvas";
import { apart, LETTER_PX, type Scale, type Tick, toPixel, toValue } from "./scales";

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
  /** Of each mark, in data, in the order in which the arrow keys go through them; y is null where only x is pointed at. */
  points: readonly (readonly [x: number, y: number | null])[];
  /** The words for the mark of this index; null: none is pointed at. */
  describe: (index: number | null) => string;
  /** Which mark is at this place; left out: the nearest along x. */
  find?: (x: number, y: number, frame: Frame) => number | null;
  /** Called with what was dragged over; `both`: a rectangle, and not a stretch of x. */
  onSelect?: ((x: Stretch, y: Stretch) => void) | undefined;
  both?: boolean;
  onPick?: (index: number) => void;
  /** Room for words above the marks. */
  above?: number;
  below?: number;
  children: (frame: Frame) => ComponentChildren;
}

const TICK_PX = 34;
const CLICK_PX = 4;
const FAR = 10;

export function Chart({ label, height, x, y, points, describe, find, onSelect, both = false, onPick, above = 10, below = 0, children }: ChartProps) {
  const [element, width] = useWidth<HTMLDivElement>();
  const [at, point] = useState<number | null>(null);
  const [held, hold] = useState<number | null>(null);
  const [drag, setDrag] = useState<{ from: Stretch; to: Stretch } | null>(null);
  const last = useRef(points);
  useEffect(() => {
    if (last.current !== points) point(null);
    last.current = points;
  }, [points]);
  const layout = useMemo(() => (width === 0 ? null : layoutOf(x, y, width, height, above, below)), [x, y, width, height, above, below]);
  const marks = useMemo(() => layout && children(layout.frame), [layout, children]);
  const index = at !== null && at < points.length ? at : null;
  const words = describe(index);
  const place = (event: PointerEvent): Stretch => [event.offsetX, event.offsetY];
  const look = ({ offsetX, offsetY }: PointerEvent) => point(find ? find(offsetX, offsetY, layout!.frame) : nearestAlong(points, toValue(layout!.frame.x, offsetX)));
  const select = (from: Stretch, to: Stretch) => {
    const range = (scale: Scale, one: number, other: number): Stretch => {
      const ends = [toValue(scale, one), toValue(scale, other)] as const;
      return [Math.min(...ends), Math.max(...ends)];
    };
    onSelect?.(range(layout!.frame.x, from[0], to[0]), range(layout!.frame.y, from[1], to[1]));
  };
  const lift = () => {
    setDrag(null);
    if (drag && onSelect && (Math.abs(drag.to[0] - drag.from[0]) >= CLICK_PX || Math.abs(drag.to[1] - drag.from[1]) >= CLICK_PX)) select(drag.from, drag.to);
    else if (index !== null) onPick?.(index);
  };
  const press = (event: KeyboardEvent) => {
    const steps: Readonly<Record<string, number>> = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: FAR, PageDown: -FAR, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step !== undefined) {
      if (onSelect && !both) hold(event.shiftKey ? (held ?? index) : null);
      point(Math.max(0, Math.min(points.length - 1, index === null ? (step > 0 ? 0 : points.length - 1) + (Number.isFinite(step) ? 0 : step) : index + step)));
    } else if (event.key === "Enter" && index !== null && held !== null && held !== index) {
      const [from, to] = [points[held]![0], points[index]![0]];
      onSelect!([Math.min(from, to), Math.max(from, to)], [0, 0]);
      hold(null);
    } else if (event.key === "Enter" && index !== null) onPick?.(index);
    else if (event.key === "Escape" && index !== null) point(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const frame = layout?.frame;
  const ends: readonly [Stretch, Stretch] | null =
    drag ? [drag.from, drag.to] : frame && held !== null && index !== null ? [[toPixel(frame.x, points[held]![0]), 0], [toPixel(frame.x, points[index]![0]), 0]] : null;
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
            <Axes frame={frame} x={layout.xTicks} y={layout.yTicks} across={x.title} up={y.title} height={height} />
            {marks}
            {index !== null && <Pointed at={points[index]!} frame={frame} />}
            {ends && (
              <rect
                class="brushed"
                x={Math.min(ends[0][0], ends[1][0])}
                width={Math.abs(ends[1][0] - ends[0][0])}
                y={both ? Math.min(ends[0][1], ends[1][1]) : frame.top}
                height={both ? Math.abs(ends[1][1] - ends[0][1]) : frame.bottom - frame.top}
              />
            )}
          </svg>
        )}
      </div>
      <p class="chart-note" aria-hidden="true">{words}</p>
    </figure>
  );
}

function Pointed({ at: [x, y], frame }: { at: readonly [number, number | null]; frame: Frame }) {
  const across = toPixel(frame.x, x);
  if (y === null) return <line class="cursor" x1={across} x2={across} y1={frame.top} y2={frame.bottom} />;
  return <circle class="pointed" cx={across} cy={toPixel(frame.y, y)} r={6} />;
}

/** Points rise along x. */
function nearestAlong(points: ChartProps["points"], wanted: number): number | null {
  let [low, high] = [0, points.length - 1];
  if (high < 0) return null;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle]![0] < wanted) low = middle;
    else high = middle;
  }
  return Math.abs(points[low]![0] - wanted) <= Math.abs(points[high]![0] - wanted) ? low : high;
}

interface Layout {
  readonly frame: Frame;
  readonly xTicks: readonly Tick[];
  readonly yTicks: readonly Tick[];
}

function layoutOf(x: Axis, y: Axis, width: number, height: number, above: number, below: number): Layout {
  const top = above + (y.title ? 16 : 0);
  const bottom = height - (x.title ? 38 : 22) - below;
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
  return { frame: { x: across, y: up, left, right: width - 14, top, bottom }, xTicks, yTicks };
}

/** Those that do not overlap up a side. */
function spread(all: readonly Tick[], scale: Scale): readonly Tick[] {
  const room = Math.abs(scale.to - scale.from) / Math.max(1, all.length - 1);
  const every = Math.ceil(14 / Math.max(1, room));
  return all.filter((_, at) => at % every === 0);
}

interface AxesProps {
  frame: Frame;
  x: readonly Tick[];
  y: readonly Tick[];
  across: string;
  up: string;
  height: number;
}

function Axes({ frame: { x, y, left, right, top }, x: xTicks, y: yTicks, across, up, height }: AxesProps) {
  return (
    <g aria-hidden="true">
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
      {across && <text class="x-title" x={(left + right) / 2} y={height - 5} text-anchor="middle">{across}</text>}
      {up && <text class="y-title" x={2} y={Math.max(11, top - 8)}>{up}</text>}
    </g>
  );
}

/** Words beside a mark, readable over other marks; to the left of it where there is no room to its right. */
export function Label({ x, y, frame, children }: { x: number; y: number; frame: Frame; children: string }) {
  const left = x + 8 + children.length * LETTER_PX > frame.right;
  return (
    <text class="mark-label" x={left ? x - 8 : x + 8} y={Math.max(frame.top + 6, y)} text-anchor={left ? "end" : "start"}>{children}</text>
  );
}
