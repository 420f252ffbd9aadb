/** The best value by first runs after each trial, or after the device-hours spent until then. */
import type { Estimate, TrialBrief } from "../../api/types";
import { type Goal, isAgain, isBetter } from "./goal";

/** x: the trial's number, or the device-hours until its end. best: with its interval; null before anything was measured. */
export interface Reached {
  readonly trial: TrialBrief;
  readonly x: number;
  readonly best: Estimate | null;
}

/** Trials that have ended: by number, or by device-hours in the order in which they ended. */
export function bestSoFar(trials: readonly TrialBrief[], goal: Goal, hours: boolean): Reached[] {
  let best: Estimate | null = null;
  let deviceSeconds = 0;
  return trials
    .filter((trial) => trial.verdict !== null)
    .sort((a, b) => (hours ? (a.finished_at ?? "").localeCompare(b.finished_at ?? "") : 0) || a.number - b.number)
    .map((trial) => {
      const reached = trial.objective;
      deviceSeconds += trial.device_seconds;
      if (reached !== null && !isAgain(trial) && (best === null || isBetter(goal, reached.value, best.value))) best = reached;
      return { trial, x: hours ? deviceSeconds / 3600 : trial.number, best };
    });
}
