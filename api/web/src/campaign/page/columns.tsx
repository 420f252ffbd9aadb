/** The columns of the trials table: the dimensions that vary, and what came of them. */
import type { ComponentChildren } from "preact";
import type { TrialBrief } from "../../api/types";
import { bareObjective, bytes, duration, gain, interval, number, probability, stepTime, UNKNOWN } from "../../format";
import { href } from "../../router";
import { Chip } from "../../ui/basics";
import { CAUSE_WORDS, trialWord } from "../../words";
import { type Goal, worded } from "../data/goal";
import { quantityWords } from "../data/quantities";
import { surprise } from "../data/rows";
import { type Dimension, INACTIVE, MEASURED, valueOf } from "../data/values";

/** by: what the column sorts by (see `rows.ts`). hidden: not shown until it is asked for. */
export interface Column {
  readonly name: string;
  readonly head: string;
  readonly title?: string;
  readonly numeric: boolean;
  readonly hidden: boolean;
  readonly descendingFirst: boolean;
  readonly cell: (trial: TrialBrief) => ComponentChildren;
}

interface Context {
  readonly campaign: string;
  readonly goal: Goal;
  /** What trials are called beside their outcome, such as "recommended". */
  readonly marks: ReadonlyMap<number, Mark>;
  /** Dimensions that vary, and those that vary but follow from them. */
  readonly varied: readonly Dimension[];
  readonly following: readonly Dimension[];
}

/** again: the objective by second runs, where those are what the words are about. */
export interface Mark {
  readonly words: readonly string[];
  readonly again: number | null;
}

export function columnsOf(context: Context): Column[] {
  const { goal, varied, following } = context;
  const dimension = ({ name, label, title, values }: Dimension, hidden: boolean) =>
    column(name, label, (trial) => <Taken value={valueOf(trial, name)} />, { title, numeric: values.length === 0, hidden });
  return [
    column("number", "#", (trial) => <a href={href({ page: "trial", id: context.campaign, number: trial.number })}>{trial.number}</a>, { numeric: true }),
    column("verdict", "outcome", (trial) => <Outcome trial={trial} marks={context.marks.get(trial.number)?.words ?? []} />, { numeric: false }),
    ...varied.map((one) => dimension(one, false)),
    ...following.map((one) => dimension(one, true)),
    column("objective", goal.label, (trial) => <Reached trial={trial} goal={goal} again={context.marks.get(trial.number)?.again ?? null} />, { descendingFirst: !goal.smallerIsBetter }),
    column("gain", "gain", (trial) => (trial.origin === "baseline" ? "baseline" : gain(trial.gain_over_baseline)), { title: "Speed of this run over the baseline's of the same round; of first runs it is not confirmed", descendingFirst: true }),
    column("step_time", "step", (trial) => stepTime(trial.step_time_s)),
    column("expected", "expected", (trial) => <Expected trial={trial} />, { title: "The step that the search expected, and how far off the measured one was", descendingFirst: true }),
    column("memory", "memory", (trial) => bytes(trial.peak_memory_bytes), { title: "Peak of tensors on the fullest rank" }),
    column("headroom", "left", (trial) => bytes(trial.headroom_bytes), { title: "What the fullest rank left of its device", hidden: true }),
    ...MEASURED.filter(({ name, field }) => name === field).map(({ name, label }) => column(name, worded(goal, label), (trial) => words(valueOf(trial, name), name, goal), { hidden: true })),
    column("device_hours", "device time", (trial) => duration(trial.device_seconds), { hidden: true, descendingFirst: true }),
    column("setting", "plan", (trial) => trial.plan_key, { numeric: false, hidden: true }),
    column("origin", "chosen as", (trial) => trial.origin, { numeric: false, hidden: true }),
    column("nodes", "nodes", (trial) => trial.nodes.join(", ") || "–", { numeric: false, hidden: true }),
  ];
}

function words(value: ReturnType<typeof valueOf>, name: string, goal: Goal): string {
  return typeof value === "number" ? quantityWords(name, value, goal) : UNKNOWN;
}

function column(name: string, head: string, cell: Column["cell"], more: Partial<Column> = {}): Column {
  return { name, head, cell, numeric: true, hidden: false, descendingFirst: false, ...more };
}

function Taken({ value }: { value: ReturnType<typeof valueOf> }) {
  return value === INACTIVE ? <span class="muted" title="inactive in this setting">{value}</span> : <>{String(value)}</>;
}

function Outcome({ trial, marks }: { trial: TrialBrief; marks: readonly string[] }) {
  const { word, tone } = trialWord(trial);
  const cause = trial.failure && CAUSE_WORDS[trial.failure] !== word ? CAUSE_WORDS[trial.failure] : "";
  const why = trial.verdict === "ok" ? "" : [cause, trial.reason].filter(Boolean).join(": ");
  return (
    <span class="outcome">
      <Chip tone={tone}>{word}</Chip>
      {marks.length > 0 && <strong class="small">{marks.join(", ")}</strong>}
      {why && <span class="reason small muted" title={why}>{why}</span>}
      {!why && trial.origin !== "search" && <span class="small muted">{trial.origin}</span>}
    </span>
  );
}

function Reached({ trial: { objective: reached }, goal, again }: { trial: TrialBrief; goal: Goal; again: number | null }) {
  if (reached === null) return <>–</>;
  return (
    <>
      {bareObjective(reached.value, goal.unit)}
      {again !== null && <div class="small muted">second run: {bareObjective(again, goal.unit)}</div>}
    </>
  );
}


function Expected({ trial }: { trial: TrialBrief }) {
  const { expectation } = trial;
  if (expectation === null) return <>–</>;
  const off = surprise(trial);
  const title = `95 %: ${interval(expectation.step_time_low_s, expectation.step_time_high_s, stepTime)}; fits with ${probability(expectation.p_fits)}`;
  return (
    <span title={title}>
      {stepTime(expectation.step_time_s)} <span class="off muted">{off === null ? "" : offWords(off)}</span>
    </span>
  );
}

function offWords(off: number): string {
  const percent = Math.round(off * 100);
  return percent === 0 ? "±0 %" : `${percent > 0 ? "+" : "−"}${number(Math.abs(percent))} %`;
}
