/** The trials of which none other is both better and emptier: what more memory buys. */
import type { TrialBrief } from "../../api/types";
import { type Goal, isAgain, isBetter } from "./goal";

interface Measured extends TrialBrief {
  readonly objective: NonNullable<TrialBrief["objective"]>;
  readonly peak_memory_bytes: number;
}

/** From the emptiest to the fullest, each better than all before it; of first runs, since second ones were at another time. */
export function frontOf(trials: readonly TrialBrief[], goal: Goal): Measured[] {
  const measured = trials.filter((one): one is Measured => one.objective !== null && !isAgain(one) && one.peak_memory_bytes !== null);
  measured.sort((a, b) => a.peak_memory_bytes - b.peak_memory_bytes || (isBetter(goal, a.objective.value, b.objective.value) ? -1 : 1));
  const front: Measured[] = [];
  for (const trial of measured) {
    const last = front.at(-1);
    if (last === undefined || isBetter(goal, trial.objective.value, last.objective.value)) front.push(trial);
  }
  return front;
}
