/** One axis of the parallel coordinates: its levels, what is kept of it, and how to keep something else. */
import { useRef } from "preact/hooks";
import { bareObjective } from "../../format";
import { conditionWords } from "../data/conditions";
import type { Condition } from "../data/filters";
import type { Goal } from "../data/goal";
import { type Axis, bandMiddle, BOTTOM, conditionOf, stretches, TOP } from "./parallel";
import { inWords, LETTER_PX, ticks, toPixel } from "./scales";

/** An axis of numbers is walked by keyboard in so many steps. */
const STEPS = 10;
const CLICK_PX = 4;
const HEIGHT = BOTTOM - TOP;
/** Letters of a name that fit above an axis. */
const LINE = 12;
/** More labels than that would overlap. */
const MOST_LABELS = 12;

interface ParallelAxisProps {
  axis: Axis;
  /** Its name, in the lines above it, and what it means. */
  label: readonly string[];
  title: string;
  /** Until the next axis, in pixels. */
  room: number;
  x: number;
  goal: Goal;
  condition: Condition | undefined;
  /** Null: all of it is kept. done: the pointer was lifted. */
  onBrush: (condition: Condition | null, done: boolean) => void;
}

export function ParallelAxis({ axis, label, title, room, x, goal, condition, onBrush }: ParallelAxisProps) {
  const start = useRef<number | null>(null);
  const position = (event: PointerEvent) => (BOTTOM - event.offsetY) / HEIGHT;
  const letters = Math.floor(room / LETTER_PX);
  const y = (at: number) => BOTTOM - at * HEIGHT;
  const [first, last] = held(axis, condition) ?? [-1, -1];
  const lift = (event: PointerEvent) => {
    const from = start.current;
    start.current = null;
    if (from === null) return;
    if (Math.abs(position(event) - from) * HEIGHT < CLICK_PX) onBrush(null, true);
    else onBrush(conditionOf(axis, from, position(event)), true);
  };
  return (
    <g class="axis" data-testid={`axis-${axis.name}`}>
      <line x1={x} x2={x} y1={TOP} y2={BOTTOM} />
      <text class="axis-name" text-anchor="middle">
        <title>{title}</title>
        {label.map((line, at) => <tspan key={line} x={x} y={TOP - 16 - 13 * (label.length - 1 - at)}>{line}</tspan>)}
      </text>
      {marks(axis, goal.unit).map(([at, words]) => (
        <text key={words} class="axis-mark" x={x + 6} y={y(at) + 4}>{words.length > letters ? `${words.slice(0, letters - 1)}…` : words}</text>
      ))}
      {condition && stretches(axis, condition).map(([from, to]) => (
        <rect key={from} class="brushed" x={x - 8} width={16} y={y(to)} height={Math.max(2, (to - from) * HEIGHT)} />
      ))}
      <rect
        class="axis-touch"
        x={x - 14}
        width={28}
        y={TOP}
        height={HEIGHT}
        tabindex={0}
        role="slider"
        aria-orientation="vertical"
        aria-label={`Filter by ${label.join("")}`}
        aria-valuemin={0}
        aria-valuemax={stepsOf(axis) - 1}
        aria-valuenow={Math.max(0, first)}
        aria-valuetext={condition ? conditionWords(axis.name, condition, goal) : "all"}
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          start.current = position(event);
        }}
        onPointerMove={(event) => {
          if (start.current !== null && Math.abs(position(event) - start.current) * HEIGHT >= CLICK_PX) onBrush(conditionOf(axis, start.current, position(event)), false);
        }}
        onPointerUp={lift}
        onPointerCancel={() => (start.current = null)}
        onClick={(event) => event.stopPropagation()}
        onKeyDown={(event) => {
          const next = walk(event, first, last, stepsOf(axis));
          if (next === undefined) return;
          event.preventDefault();
          event.stopPropagation();
          onBrush(next && conditionOf(axis, next[0] / stepsOf(axis), (next[1] + 1) / stepsOf(axis)), true);
        }}
      />
    </g>
  );
}

/** A name in two lines where it is long: parted at a space, a hyphen or an underscore, nearest to its middle. */
export function inLines(name: string): string[] {
  const ends = [...name.matchAll(/[ _-]/g)].map(({ index }) => index + 1);
  if (name.length <= LINE || ends.length === 0) return [name];
  const half = name.length / 2;
  const end = ends.sort((a, b) => Math.abs(a - half) - Math.abs(b - half))[0]!;
  return [name.slice(0, end), name.slice(end)];
}

/** Labels of an axis: its levels, or round numbers between its ends. */
function marks(axis: Axis, unit: string): [number, string][] {
  const { scale, levels } = axis;
  if (scale) return inWords(ticks(scale.low, scale.high, 6), (value, digits) => bareObjective(value, unit, digits)).map(([value, said]) => [toPixel(scale, value), said]);
  const every = Math.ceil(levels.length / MOST_LABELS);
  return levels.flatMap((level, at): [number, string][] => (at % every === 0 ? [[bandMiddle(axis, at), String(level)]] : []));
}

function stepsOf(axis: Axis): number {
  return axis.levels.length || STEPS;
}

/** First and last step, from the bottom, that a condition keeps. */
export function held(axis: Axis, condition: Condition | undefined): [number, number] | null {
  const kept = condition ? stretches(axis, condition) : [];
  if (kept.length === 0) return null;
  const steps = stepsOf(axis);
  const last = Math.min(steps - 1, Math.max(0, Math.round(kept.at(-1)![1] * steps) - 1));
  return [Math.min(last, Math.max(0, Math.round(kept[0]![0] * steps))), last];
}

/** The steps that a key leads to: null clears, undefined is none of our keys. first -1: nothing is kept yet. */
export function walk(
  { key, shiftKey }: Pick<KeyboardEvent, "key" | "shiftKey">,
  first: number,
  last: number,
  steps: number,
): [number, number] | null | undefined {
  const within = (step: number) => Math.min(steps - 1, Math.max(0, step));
  const up = key === "ArrowUp" || key === "ArrowRight";
  const none = first < 0;
  if (key === "Delete" || key === "Backspace" || (key === "Escape" && !none)) return null;
  if (key === "Home") return [0, shiftKey && !none ? last : 0];
  if (key === "End") return [shiftKey && !none ? first : steps - 1, steps - 1];
  if (!up && key !== "ArrowDown" && key !== "ArrowLeft") return undefined;
  if (none) return up ? [0, 0] : [steps - 1, steps - 1];
  const next = within(up ? last + 1 : first - 1);
  if (shiftKey) return up ? [first, next] : [next, last];
  return [next, next];
}
