/** Parallel coordinates: every trial is a line through its values; dragging over an axis keeps the trials that cross there.
 *
 * Lines are drawn on a canvas, so that thousands stay quick; axes and brushes lie over it and are reached by keyboard.
 */
import { useCallback, useMemo, useState } from "preact/hooks";
import type { TrialBrief } from "../../api/types";
import { objective } from "../../format";
import { go, href } from "../../router";
import { Canvas, useWidth } from "./canvas";
import { setConditions, wordOf } from "../data/conditions";
import { type Condition, type Filters, passes } from "../data/filters";
import { type Goal, merit } from "../data/goal";
import { type Palette, rampStep, usePalette } from "./palette";
import { type Axis, conditionOf, type Frame, type Line, levelAxis, linesOf, nearest } from "./parallel";
import { ParallelAxis } from "./parallel_axis";
import { extent } from "./scales";
import { type Dimension, outcomeOf } from "../data/values";

const HEIGHT = 320;
const TOP = 30;
const BOTTOM = HEIGHT - 30;
const RAIL = HEIGHT - 8;
const LEAST_GAP = 78;
const REACH = 8;
/** Filtered lines are only the ground that the others lie on: so many show it, however many there are. */
const MOST_OFF = 400;
/** Where no graphics processor helps, thousands of lines of one pixel are drawn eight times as fast as thicker ones. */
const THICKEST = 1;

interface ParallelPlotProps {
  campaign: string;
  goal: Goal;
  /** Dimensions from left to right; the objective comes last. */
  dimensions: readonly Dimension[];
  /** Of what the axes are made. */
  trials: readonly TrialBrief[];
  /** Which of them are drawn. */
  drawn: readonly TrialBrief[];
  filters: Filters;
  /** Why nothing is drawn, where nothing is. */
  none: string;
}

export function ParallelPlot({ campaign, goal, dimensions, trials, drawn, filters, none }: ParallelPlotProps) {
  const [box, room] = useWidth<HTMLDivElement>();
  const [drag, setDrag] = useState<{ name: string; condition: Condition | null } | null>(null);
  const [pointed, point] = useState<Line | null>(null);
  const palette = usePalette();
  const axes = useMemo(() => axesOf(trials, dimensions, goal), [trials, dimensions, goal]);
  const width = Math.max(room, 100 + (axes.length - 1) * LEAST_GAP);
  const frame = useMemo<Frame>(() => {
    const gap = (width - 110) / Math.max(1, axes.length - 1);
    return { x: axes.map((_, at) => 36 + at * gap), top: TOP, bottom: BOTTOM, rail: RAIL };
  }, [axes, width]);
  const lines = useMemo(() => (room === 0 ? [] : linesOf(drawn, axes, frame)), [drawn, axes, frame, room === 0]);
  const ends = useMemo(() => extent(drawn.flatMap((trial) => trial.objective?.value ?? [])), [drawn]);
  const looked = useMemo(() => (drag === null ? filters : dragged(filters, drag)), [filters, drag]);
  const split = useMemo(() => splitLines(lines, looked, goal, ends), [lines, looked, goal, ends]);
  const draw = useCallback(
    (context: CanvasRenderingContext2D) => drawLines(context, split, frame, palette),
    [split, frame, palette],
  );
  const why = none || (split.on.length === 0 && room > 0 ? "No trial passes the filters." : "");
  const without = countWords(split.on.filter(({ ramp }) => ramp === null).map(({ line }) => wordOf(outcomeOf(line.trial))));
  const brush = (name: string, condition: Condition | null, done: boolean) => {
    setDrag(done ? null : { name, condition });
    if (done) setConditions({ [name]: condition });
  };
  return (
    <figure class="plot">
      <div ref={box} class="chart-scroll">
        <div class="chart-box" style={{ height: `${HEIGHT}px`, width: `${width}px` }} data-lines={split.on.length}>
          <Canvas width={room === 0 ? 0 : width} height={HEIGHT} draw={draw} />
          <svg
            width={width}
            height={HEIGHT}
            role="group"
            aria-label={`Parallel coordinates of ${split.on.length} trials${without && `; without a result: ${without}`}${why && `. ${why}`}`}
            onPointerMove={(event) => {
              if (drag === null) point(nearest(split.on.map(({ line }) => line), frame, event.offsetX, event.offsetY, REACH));
            }}
            onPointerLeave={() => point(null)}
            onClick={() => pointed && go(href({ page: "trial", id: campaign, number: pointed.trial.number }))}
          >
            <line class="rail" x1={frame.x[0]} x2={frame.x.at(-1)} y1={RAIL} y2={RAIL} />
            {pointed && <polyline class="pointed-line" points={pointsOf(pointed, frame)} />}
            {axes.map((axis, at) => (
              <ParallelAxis
                key={axis.name}
                axis={axis}
                x={frame.x[at]!}
                frame={frame}
                goal={goal}
                condition={looked.on[axis.name]}
                onBrush={(from, to, done) => brush(axis.name, conditionOf(axis, from, to), done)}
                onCondition={(condition) => brush(axis.name, condition, true)}
              />
            ))}
            <text class="rail-label" x={frame.x.at(-1)! + 8} y={RAIL + 3}>no result</text>
            {why && <text class="none" data-testid="no-lines" x={Math.min(width, room) / 2} y={HEIGHT / 2} text-anchor="middle">{why}</text>}
          </svg>
        </div>
      </div>
      <p class="chart-note" aria-hidden="true">
        {pointed ? lineWords(pointed.trial, goal) : `${without && `No result: ${without}. `}Drag over an axis to filter, click it to clear. By keyboard: arrows move, Shift and arrows widen, Delete clears.`}
      </p>
    </figure>
  );
}

/** "5 out of memory, 2 crashed". */
function countWords(words: readonly string[]): string {
  const found = new Map<string, number>();
  for (const word of words) found.set(word, (found.get(word) ?? 0) + 1);
  return [...found].sort((a, b) => b[1] - a[1]).map(([word, times]) => `${times} ${word}`).join(", ");
}

function axesOf(trials: readonly TrialBrief[], dimensions: readonly Dimension[], goal: Goal): Axis[] {
  const [low, high] = extent(trials.flatMap((trial) => trial.objective?.value ?? [])) ?? [0, 1];
  const result: Axis = { name: "objective", levels: [], low, high, flipped: goal.smallerIsBetter };
  return [...dimensions.map((dimension) => levelAxis(trials, dimension)), result];
}

function dragged(filters: Filters, { name, condition }: { name: string; condition: Condition | null }): Filters {
  const { [name]: _, ...others } = filters.on;
  return { ...filters, on: condition === null ? others : { ...others, [name]: condition } };
}

/** ramp: the colour of a measured trial; null of one without a result. */
interface Shown {
  readonly line: Line;
  readonly ramp: number | null;
}

interface Split {
  readonly off: readonly Line[];
  readonly on: readonly Shown[];
}

/** The filtered lines lie under the others, failed ones under measured ones, and the best on top. */
function splitLines(lines: readonly Line[], filters: Filters, goal: Goal, ends: [number, number] | null): Split {
  const off: Line[] = [];
  const on: (Shown & { merit: number })[] = [];
  for (const line of lines) {
    if (!passes(line.trial, filters)) {
      off.push(line);
      continue;
    }
    const value = line.trial.objective?.value;
    const known = value !== undefined && ends !== null;
    const better = known ? merit(goal, value, ends) : -1;
    on.push({ line, merit: better, ramp: known ? rampStep(better) : null });
  }
  on.sort((a, b) => a.merit - b.merit);
  return { off, on };
}

function drawLines(context: CanvasRenderingContext2D, { off, on }: Split, frame: Frame, palette: Palette): void {
  context.lineWidth = THICKEST;
  context.strokeStyle = palette.line;
  context.globalAlpha = 0.5;
  const every = Math.ceil(off.length / MOST_OFF);
  for (let at = 0; at < off.length; at += every) stroke(context, off[at]!, frame);
  const many = Math.min(1, 12 / Math.sqrt(on.length + 1));
  for (const { line, ramp } of on) {
    const verdict = line.trial.verdict;
    context.strokeStyle = ramp === null ? (verdict === "oom" ? palette.oom : verdict === "pruned" ? palette.pruned : palette.failed) : palette.ramp[ramp]!;
    context.globalAlpha = (ramp === null ? 0.4 : 0.35 + 0.15 * ramp) * (0.4 + 0.6 * many);
    context.lineWidth = ramp === null ? 0.75 : THICKEST;
    // Broken lines, for those who do not tell the colours apart; of many they would take long, and cover each other.
    context.setLineDash(on.length > MOST_OFF || ramp !== null ? [] : verdict === "oom" ? [5, 3] : [1, 3]);
    stroke(context, line, frame);
  }
}

function stroke(context: CanvasRenderingContext2D, line: Line, frame: Frame): void {
  context.beginPath();
  frame.x.forEach((x, at) => context.lineTo(x, line.heights[at]!));
  context.stroke();
}

function pointsOf(line: Line, frame: Frame): string {
  return frame.x.map((x, at) => `${x},${line.heights[at]}`).join(" ");
}

function lineWords(trial: TrialBrief, goal: Goal): string {
  const came = trial.objective ? objective(trial.objective.value, goal.unit) : wordOf(outcomeOf(trial));
  return `#${trial.number} ${trial.plan_key}: ${came}`;
}
