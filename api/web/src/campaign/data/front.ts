/** The trials of which none other is both better and emptier: what more memory buys. */
import type { TrialBrief } from "../../api/types";
import { type Goal, isAgain, isBetter } from "./goal";

export interface Measured extends TrialBrief {
  readonly objective: NonNullable<TrialBrief["objective"]>;
  readonly peak_memory_bytes: number;
}

/** The first runs with both a value and a peak of memory: second ones were at another time. */
export function measured(trials: readonly TrialBrief[]): Measured[] {
  return trials.filter((one): one is Measured => one.objective !== null && !isAgain(one) && one.peak_memory_bytes !== null);
}

/** From the emptiest to the fullest, each better than all before it. */
export function frontOf(trials: readonly Measured[], goal: Goal): Measured[] {
  const sorted = [...trials].sort(
    (a, b) =>
      a.peak_memory_bytes - b.peak_memory_bytes || (isBetter(goal, a.objective.value, b.objective.value) ? -1 : 1),
  );
  const front: Measured[] = [];
  for (const trial of sorted) {
    const last = front.at(-1);
    if (last === undefined || isBetter(goal, trial.objective.value, last.objective.value)) front.push(trial);
  }
  return front;
}
