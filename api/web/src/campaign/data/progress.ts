/** The best value by first runs after each trial, against trials or against the device-hours spent until then. */
import type { TrialBrief } from "../../api/types";
import { type Goal, isAgain, isBetter } from "./goal";

/** Columns of equal length, x rising. value: of the trial itself, null where it has none; the best with its interval. */
export interface BestSoFar {
  readonly numbers: number[];
  readonly x: number[];
  readonly value: (number | null)[];
  readonly best: (number | null)[];
  readonly low: (number | null)[];
  readonly high: (number | null)[];
}

export type Against = "trials" | "device_hours";

/** Trials that have ended: by number, or in the order in which they ended. */
export function bestSoFar(trials: readonly TrialBrief[], goal: Goal, against: Against): BestSoFar {
  const ended = trials.filter((trial) => trial.verdict !== null);
  ended.sort(against === "trials" ? (a, b) => a.number - b.number : byEnd);
  const columns: BestSoFar = { numbers: [], x: [], value: [], best: [], low: [], high: [] };
  let best: { value: number; low: number; high: number } | null = null;
  let deviceSeconds = 0;
  for (const trial of ended) {
    const reached = trial.objective;
    deviceSeconds += trial.device_seconds;
    if (reached !== null && !isAgain(trial) && (best === null || isBetter(goal, reached.value, best.value))) best = reached;
    columns.numbers.push(trial.number);
    columns.x.push(against === "trials" ? trial.number : deviceSeconds / 3600);
    columns.value.push(reached?.value ?? null);
    columns.best.push(best?.value ?? null);
    columns.low.push(best?.low ?? null);
    columns.high.push(best?.high ?? null);
  }
  return columns;
}

function byEnd(a: TrialBrief, b: TrialBrief): number {
  return (a.finished_at ?? "").localeCompare(b.finished_at ?? "") || a.number - b.number;
}
