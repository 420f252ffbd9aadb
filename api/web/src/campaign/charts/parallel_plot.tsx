/** Parallel coordinates: every trial is a line through its values; dragging over an axis keeps the trials that cross there.
 * All lines of a colour are one path, so that thousands stay quick. */
import { useMemo, useState } from "preact/hooks";
import type { TrialBrief } from "../../api/types";
import { go, href } from "../../router";
import { Card } from "../../ui/basics";
import { Menu } from "../../ui/menu";
import { setConditions, wordOf } from "../data/conditions";
import { type Condition, type Filters, passes } from "../data/filters";
import { type Goal, isBetter, merit } from "../data/goal";
import { useRemembered } from "../data/remembered";
import { type Dimension, labelOf } from "../data/values";
import { line as pathOf, rampStep } from "./marks";
import { cameWords, outcomesOf } from "./outcomes";
import { type Axis, type Line, levelAxis, linesOf, nearest, RAIL } from "./parallel";
import { inLines, ParallelAxis } from "./parallel_axis";
import { BOLD_PX, extent, linear } from "./scales";
import { useWidth } from "./width";

const HEIGHT = RAIL + 8;
const LEAST_GAP = 78;
/** Beside the first axis and the last, for their names. */
const SIDE = 60;
const REACH = 8;
/** Above that many, lines cover each other: the best tenth says more. */
const MANY = 1000;
/** More axes are not read. */
const MOST_AXES = 7;
/** Filtered lines are only the ground that the others lie on: so many show it, however many there are. */
const MOST_OFF = 400;
/** So many broken lines would cover each other. */
const MOST_BROKEN = 400;

interface ParallelProps {
  campaign: string;
  goal: Goal;
  /** Dimensions in which the trials differ, those that matter most first: the first are the axes until others are chosen. */
  varied: readonly Dimension[];
  trials: readonly TrialBrief[];
  filters: Filters;
}

export function ParallelCard({ campaign, goal, varied, trials: all, filters }: ParallelProps) {
  const [asked, ask] = useRemembered<Readonly<Record<string, boolean>>>("meshtune.axes.asked", {});
  const trials = useMemo(() => all.filter(({ verdict }) => verdict !== null && verdict !== "cancelled"), [all]);
  const drawn = useMemo(() => (trials.length > MANY ? bestOf(trials, goal) : trials), [trials, goal]);
  // From left to right; the objective comes last.
  const dimensions = useMemo(() => varied.filter(({ name }, at) => asked[name] ?? at < MOST_AXES), [varied, asked]);
  const [box, room] = useWidth<HTMLDivElement>();
  const [drag, setDrag] = useState<{ name: string; condition: Condition | null } | null>(null);
  const [pointed, point] = useState<Line | null>(null);
  const axes = useMemo(() => axesOf(trials, dimensions, goal), [trials, dimensions, goal]);
  const labels = axes.map(({ name }) => inLines(name === "objective" ? goal.label : labelOf(name)));
  const least = Math.max(LEAST_GAP, ...labels.flat().map((line) => line.length * BOLD_PX + 8));
  const gap = Math.max(least, (room - 2 * SIDE) / Math.max(1, axes.length - 1));
  const width = Math.max(room, 2 * SIDE + (axes.length - 1) * gap);
  const xs = useMemo(() => axes.map((_, at) => SIDE + at * gap), [axes, gap]);
  const lines = useMemo(() => (room === 0 ? [] : linesOf(drawn, axes)), [drawn, axes, room === 0]);
  const ends = useMemo(() => extent(drawn.flatMap((trial) => trial.objective?.value ?? [])), [drawn]);
  const looked = useMemo(() => (drag === null ? filters : dragged(filters, drag)), [filters, drag]);
  const split = useMemo(() => splitLines(lines, looked, goal, ends), [lines, looked, goal, ends]);
  const marks = useMemo(() => <Lines split={split} xs={xs} />, [split, xs]);
  const why = split.on.length === 0 && room > 0 ? "No trial passes the filters." : "";
  const without = outcomesOf(split.on.filter(({ trial }) => trial.objective === null)).map(([outcome, , some]) => `${some.length} ${wordOf(outcome)}`).join(", ");
  const brush = (name: string, condition: Condition | null, done: boolean) => {
    setDrag(done ? null : { name, condition });
    if (done) setConditions({ [name]: condition });
  };
  return (
    <Card
      title={drawn === trials ? "Parallel coordinates" : "Parallel coordinates of the best tenth"}
      testid="parallel"
      aside={
        <Menu label={`Axes${dimensions.length < varied.length ? ` (${dimensions.length} of ${varied.length})` : ""}`} stays>
          {varied.map(({ name, label, title }) => (
            <label key={name} title={title}>
              <input type="checkbox" checked={dimensions.some((one) => one.name === name)} onChange={(event) => ask({ ...asked, [name]: event.currentTarget.checked })} />
              {label}
            </label>
          ))}
        </Menu>
      }
    >
      <figure class="plot">
        <div ref={box} class="chart-scroll">
          <div class="chart-box" style={{ height: `${HEIGHT}px`, width: `${width}px` }}>
            <svg
              width={width}
              height={HEIGHT}
              role="group"
              aria-label={`Parallel coordinates of ${split.on.length} trials${without && `; without a result: ${without}`}${why && `. ${why}`}`}
              onPointerMove={(event) => {
                if (drag === null) point(nearest(split.on, xs, event.offsetX, event.offsetY, REACH));
              }}
              onPointerLeave={() => point(null)}
              onClick={() => pointed && go(href({ page: "trial", id: campaign, number: pointed.trial.number }))}
            >
              {marks}
              <line class="rail" x1={xs[0]} x2={xs.at(-1)} y1={RAIL} y2={RAIL} />
              {pointed && <path class="pointed-line" d={pathsOf([pointed], xs)} />}
              {axes.map((axis, at) => (
                <ParallelAxis
                  key={axis.name}
                  axis={axis}
                  label={labels[at]!}
                  title={dimensions[at]?.title ?? goal.label}
                  room={gap - 10}
                  x={xs[at]!}
                  goal={goal}
                  condition={looked.on[axis.name]}
                  onBrush={(condition, done) => brush(axis.name, condition, done)}
                />
              ))}
              <text x={xs.at(-1)! + 8} y={RAIL + 3}>no result</text>
              {why && <text data-testid="no-lines" x={Math.min(width, room) / 2} y={HEIGHT / 2} text-anchor="middle">{why}</text>}
            </svg>
          </div>
        </div>
        <p class="chart-note" aria-hidden="true">
          {pointed ? `#${pointed.trial.number} ${pointed.trial.plan_key}: ${cameWords(pointed.trial, goal)}` : `${without && `No result: ${without}. `}Drag over an axis to filter, click it to clear. By keyboard: arrows move, Shift and arrows widen, Delete clears.`}
        </p>
      </figure>
    </Card>
  );
}

function bestOf(trials: readonly TrialBrief[], goal: Goal): readonly TrialBrief[] {
  const measured = trials.filter((trial) => trial.objective !== null);
  measured.sort((a, b) => (isBetter(goal, a.objective!.value, b.objective!.value) ? -1 : 1));
  return measured.slice(0, Math.ceil(measured.length / 10));
}

function axesOf(trials: readonly TrialBrief[], dimensions: readonly Dimension[], goal: Goal): Axis[] {
  const [low, high] = extent(trials.flatMap((trial) => trial.objective?.value ?? [])) ?? [0, 1];
  const up = goal.smallerIsBetter ? linear(low, high, 1, 0) : linear(low, high, 0, 1);
  return [...dimensions.map((dimension) => levelAxis(trials, dimension)), { name: "objective", levels: [], scale: up }];
}

function dragged(filters: Filters, { name, condition }: { name: string; condition: Condition | null }): Filters {
  const { [name]: _, ...others } = filters.on;
  return { ...filters, on: condition === null ? others : { ...others, [name]: condition } };
}

/** ramps: of each step, from the worst to the best. */
interface Split {
  readonly off: readonly Line[];
  readonly on: readonly Line[];
  readonly ramps: readonly (readonly Line[])[];
}

function splitLines(lines: readonly Line[], filters: Filters, goal: Goal, ends: [number, number] | null): Split {
  const ramps: Line[][] = [[], [], [], [], []];
  const on = lines.filter(({ trial }) => passes(trial, filters));
  for (const line of on) {
    const value = line.trial.objective?.value;
    if (value !== undefined && ends) ramps[rampStep(merit(goal, value, ends))]!.push(line);
  }
  return { off: lines.filter((line) => !passes(line.trial, filters)), on, ramps };
}

/** The filtered lines lie under the others, failed ones under measured ones, and the best on top. */
function Lines({ split: { off, on, ramps }, xs }: { split: Split; xs: readonly number[] }) {
  const every = Math.ceil(off.length / MOST_OFF);
  const many = 0.4 + 0.6 * Math.min(1, 12 / Math.sqrt(on.length + 1));
  return (
    <g class={on.length > MOST_BROKEN ? "lines" : "lines broken"}>
      <path class="off" d={pathsOf(off.filter((_, at) => at % every === 0), xs)} />
      {outcomesOf(on.filter(({ trial }) => trial.objective === null)).map(([outcome, tone, some]) => (
        <path key={outcome} class={`dots-${tone}`} data-testid={`lines-${outcome}`} opacity={0.4 * many} d={pathsOf(some, xs)} />
      ))}
      {ramps.map((some, step) => (
        <path key={step} style={{ stroke: `var(--ramp-${step + 1})` }} opacity={(0.35 + 0.15 * step) * many} d={pathsOf(some, xs)} />
      ))}
    </g>
  );
}

function pathsOf(lines: readonly Line[], xs: readonly number[]): string {
  return lines.map(({ heights }) => pathOf(xs.map((x, at) => [x, heights[at]!]))).join("");
}
