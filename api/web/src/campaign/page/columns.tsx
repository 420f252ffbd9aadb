/** The columns of the trials table: the dimensions that vary, and what came of them. */
import type { ComponentChildren } from "preact";
import type { Plan } from "../../api/types";
import { bareObjective, bytes, duration, gain, stepTime, UNKNOWN } from "../../format";
import { Chip, TrialLink } from "../../ui/basics";
import { CAUSE_WORDS, trialWord, wordOf } from "../../words";
import { figuresOf } from "../data/figures";
import { type Goal, worded, NOT_CONFIRMED } from "../data/goal";
import { quantityWords } from "../data/quantities";
import { surprise } from "../data/rows";
import type { Setting } from "../data/settings";
import { type Dimension, INACTIVE, MEASURED, valueOf } from "../data/values";

/** name: what it sorts by, too (see `rows.ts`). hidden: not shown until it is asked for. */
export interface Column {
  readonly name: string;
  readonly head: string;
  readonly title?: string;
  readonly numeric: boolean;
  readonly hidden: boolean;
  readonly descendingFirst: boolean;
  readonly cell: (trial: Setting) => ComponentChildren;
}

interface Context {
  readonly campaign: string;
  readonly goal: Goal;
  /** What trials are called beside their outcome, such as "recommended". */
  readonly marks: ReadonlyMap<number, string>;
  /** Dimensions that vary, and those that vary but follow from them. */
  readonly varied: readonly Dimension[];
  readonly following: readonly Dimension[];
  /** Where many vary, a setting is its difference from it. */
  readonly baseline: Plan | undefined;
}

const MOST_VARIED = 6;

export function columnsOf(context: Context): Column[] {
  const { campaign, goal, varied, following, marks, baseline } = context;
  const many = varied.length > MOST_VARIED;
  const dimension = ({ name, label, title, values }: Dimension, hidden: boolean) =>
    column(name, label, (trial) => takenWords(valueOf(trial, name)), { title, numeric: values.length === 0, hidden });
  const words = (name: string, value: ReturnType<typeof valueOf>) => (value === null ? UNKNOWN : quantityWords(name, Number(value), goal));
  return [
    column("number", "#", ({ number }) => <TrialLink campaign={campaign} number={number}>{number}</TrialLink>),
    column("verdict", "outcome", (trial) => <Outcome campaign={campaign} trial={trial} mark={marks.get(trial.number)} />, { numeric: false }),
    column("differs", "setting", (trial) => <Differing trial={trial} baseline={baseline} varied={varied} />, { title: "What differs from the baseline", numeric: false, hidden: !many }),
    ...varied.map((one) => dimension(one, many)),
    ...following.map((one) => dimension(one, true)),
    column("objective", goal.label, (trial) => bareObjective(trial.objective?.value, goal.unit), { descendingFirst: !goal.smallerIsBetter }),
    column("gain", "gain", (trial) => <Gained trial={trial} />, { title: "Speed over the baseline's of the same round; in grey of first runs, not confirmed", descendingFirst: true }),
    column("step_time", "step", (trial) => stepTime(trial.step_time_s)),
    column("expected", "expected", (trial) => <Expected trial={trial} />, { title: "The step that the search expected, and how far off the measured one was", descendingFirst: true }),
    column("memory", "memory", (trial) => bytes(trial.peak_memory_bytes), { title: "Peak of tensors on the fullest rank" }),
    column("headroom", "left", (trial) => bytes(trial.headroom_bytes), { title: "What the fullest rank left of its device", hidden: true }),
    ...MEASURED.filter(({ name, field }) => name === field).map(({ name, label }) => column(name, worded(goal, label), (trial) => words(name, valueOf(trial, name)), { hidden: true })),
    column("device_hours", "device time", (trial) => duration(trial.device_seconds), { hidden: true, descendingFirst: true }),
    column("setting", "plan", (trial) => trial.plan_key, { numeric: false, hidden: true }),
    column("nodes", "nodes", (trial) => trial.nodes.join(", ") || "–", { numeric: false, hidden: true }),
  ];
}

function column(name: string, head: string, cell: Column["cell"], more: Partial<Column> = {}): Column {
  return { name, head, cell, numeric: true, hidden: false, descendingFirst: false, ...more };
}

function takenWords(value: ReturnType<typeof valueOf>): ComponentChildren {
  return value === INACTIVE ? <span class="muted" title="inactive in this setting">{value}</span> : String(value);
}

function Differing({ trial, baseline, varied }: { trial: Setting; baseline: Plan | undefined; varied: readonly Dimension[] }) {
  const differ = varied.filter(({ name }) => !baseline || valueOf(trial, name) !== valueOf({ ...trial, plan: baseline }, name));
  return <span class="differs">{differ.map(({ name, label }) => `${label} ${valueOf(trial, name)}`).join(", ") || "as the baseline"}</span>;
}

function Gained({ trial }: { trial: Setting }) {
  if (trial.origin === "baseline") return <>baseline</>;
  return figuresOf(trial).rounds > 0 ? <>{gain(trial.gain_over_baseline)}</> : <span class="muted" title={NOT_CONFIRMED}>{gain(trial.gain_over_baseline)}</span>;
}

function Expected({ trial }: { trial: Setting }) {
  const off = surprise(trial);
  return (
    <>
      {stepTime(trial.expectation?.step_time_s)}
      {off !== null && <span class="muted"> {gain(off)}</span>}
    </>
  );
}

/** How the first run ended, what the setting is called, and how its second runs went, each a link. */
function Outcome({ campaign, trial, mark }: { campaign: string; trial: Setting; mark: string | undefined }) {
  const { word, tone } = trialWord(trial);
  const { runs, failedAgain } = figuresOf(trial);
  const cause = trial.failure && CAUSE_WORDS[trial.failure] !== word ? CAUSE_WORDS[trial.failure] : "";
  const why = trial.verdict === "ok" ? "" : [cause, trial.reason].filter(Boolean).join(": ");
  const again = trial.again ?? [];
  return (
    <span class="row outcome">
      <Chip tone={tone}>{word}</Chip>
      {mark && <strong class="small">{mark}</strong>}
      {why && <span class="reason small muted" title={why}>{why}</span>}
      {trial.origin !== "search" && <span class="small muted">{wordOf(trial.origin)}</span>}
      {again.length > 0 && (
        <span class="small muted">
          {[runs > 0 ? `confirmed ×${runs}` : "second run", failedAgain && "one failed"].filter(Boolean).join(", ")}:
          {again.map((run) => <span key={run.number} title={trialWord(run).word}> <TrialLink campaign={campaign} number={run.number}>{run.number}</TrialLink></span>)}
        </span>
      )}
    </span>
  );
}
