/** Fresh trials over those that are known: by number, so that an event that comes twice changes nothing. */
import type { TrialBrief } from "../../api/types";

/** In order of number. A trial that says the same stays the same object, and so does the whole where nothing changed. */
export function upsert(known: readonly TrialBrief[], fresh: readonly TrialBrief[]): readonly TrialBrief[] {
  const byNumber = new Map(known.map((trial) => [trial.number, trial]));
  let changed = false;
  for (const trial of fresh) {
    const before = byNumber.get(trial.number);
    if (before === trial || (before !== undefined && JSON.stringify(before) === JSON.stringify(trial))) continue;
    byNumber.set(trial.number, trial);
    changed = true;
  }
  return changed ? [...byNumber.values()].sort((a, b) => a.number - b.number) : known;
}

/** The numbers of runs that have a gain now: a fresh run of the baseline was the last of their round. baseline: its first trial. */
export function gainsDue(known: readonly TrialBrief[], fresh: readonly TrialBrief[], baseline: number | undefined): number[] {
  const plan = known.find(({ number }) => number === baseline)?.plan_key;
  const rounds = fresh.filter((trial) => trial.plan_key === plan && trial.objective !== null).map(({ round }) => round);
  return known
    .filter((trial) => rounds.includes(trial.round) && trial.objective !== null && trial.gain_over_baseline === null)
    .map(({ number }) => number);
}
