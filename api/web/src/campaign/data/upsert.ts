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
