/** Trials by how they ended: each outcome with its shape, its colour and its word, so that none is told by colour alone. */
import type { ComponentChildren } from "preact";
import type { CampaignView, TrialBrief } from "../../api/types";
import { bareObjective, count, counted } from "../../format";
import { type Tone, trialWord } from "../../words";
import { wordOf } from "../data/conditions";
import { type Goal, isAgain } from "../data/goal";
import { outcomeOf } from "../data/values";
import { marks, type Point, type Shape, shapeOf } from "./marks";

/** So many dots cover each other: they are small and let through what lies under them. */
const MANY = 500;

/** Of a chart of runs. shown: those that pass the filters. */
export interface RunsProps {
  campaign: CampaignView;
  goal: Goal;
  trials: readonly TrialBrief[];
  shown: ReadonlySet<TrialBrief>;
}

/** What came of a run. */
export function cameWords(trial: TrialBrief, goal: Goal): string {
  return trial.objective ? `${goal.label} ${bareObjective(trial.objective.value, goal.unit)}` : wordOf(outcomeOf(trial));
}

interface Run {
  readonly trial: TrialBrief;
}

/** Those of each outcome together, the most frequent first: it lies under the others. */
export function outcomesOf<T extends Run>(all: readonly T[]): [string, Tone, T[]][] {
  const found = new Map<string, T[]>();
  for (const one of all) {
    const outcome = outcomeOf(one.trial);
    const some = found.get(outcome);
    if (some) some.push(one);
    else found.set(outcome, [one]);
  }
  return [...found].map(([outcome, some]): [string, Tone, T[]] => [outcome, trialWord(some[0]!.trial).tone, some]).sort((a, b) => b[2].length - a[2].length);
}

const isHollow = ({ trial }: Run) => isAgain(trial) && trial.objective !== null;

/** The marks of trials, each outcome with its shape; second runs are hollow. */
export function Dots<T extends Run>({ all, at }: { all: readonly T[]; at: (one: T) => Point }) {
  const many = all.length > MANY ? "many" : "";
  const again = all.filter(isHollow);
  return (
    <>
      {outcomesOf(all.filter((one) => !isHollow(one))).map(([outcome, tone, some]) => (
        <path key={outcome} class={`dots dots-${tone} ${many}`} data-testid={`dots-${outcome}`} data-marks={some.length} d={marks(some.map(at), shapeOf(outcome))} />
      ))}
      <path class="dots-again" data-testid="dots-again" data-marks={again.length} d={marks(again.map(at), "ring")} />
    </>
  );
}

/** made: "simulated" or "measured". */
export function OutcomeLegend({ all, made, children }: { all: readonly Run[]; made: string; children?: ComponentChildren }) {
  const again = all.filter(isHollow).length;
  return (
    <ul class="chart-legend">
      {outcomesOf(all.filter((one) => !isHollow(one))).map(([outcome, tone, some]) => (
        <Key key={outcome} mark={`dots dots-${tone}`} shape={shapeOf(outcome)}>{count(some.length)} {outcome === "ok" ? made : wordOf(outcome)}</Key>
      ))}
      {again > 0 && <Key mark="dots-again" shape="ring">{counted(again, "second run")}</Key>}
      {children}
    </ul>
  );
}

function Key({ mark, shape, children }: { mark: string; shape: Shape; children: ComponentChildren }) {
  return (
    <li>
      <svg class="outcome-key" width="14" height="12" aria-hidden="true">
        <path class={mark} d={marks([[7, 6]], shape)} />
      </svg>
      {children}
    </li>
  );
}
