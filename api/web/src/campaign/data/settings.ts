/** The rows of the table: one for a setting, with its second runs in the row of its first. */
import type { TrialBrief } from "../../api/types";
import { figuresOf } from "./figures";
import { isAgain } from "./goal";

/** A first run that has the figures of its setting. again: the second runs; undefined where there are none. */
export interface Setting extends TrialBrief {
  readonly again?: readonly TrialBrief[];
}

// A row that says the same stays the same object, so that it is not drawn anew.
const kept = new WeakMap<TrialBrief, Setting>();

export function settingsOf(trials: readonly TrialBrief[]): Setting[] {
  const runs = new Map<string, TrialBrief[]>();
  for (const trial of trials) {
    const known = runs.get(trial.plan_key);
    if (!known) runs.set(trial.plan_key, [trial]);
    else if (isAgain(trial)) known.push(trial);
  }
  return trials.flatMap((trial) => {
    const [first, ...again] = runs.get(trial.plan_key)!;
    if (trial === first && again.length > 0) return folded(trial, again);
    return trial !== first && isAgain(trial) ? [] : trial;
  });
}

function folded(first: TrialBrief, again: readonly TrialBrief[]): Setting {
  const before = kept.get(first);
  if (before?.again?.length === again.length && again.every((run, at) => run === before.again![at])) return before;
  const { objective, stepTime_s, gain } = figuresOf(first);
  const row = { ...first, again, objective, step_time_s: stepTime_s, gain_over_baseline: gain };
  kept.set(first, row);
  return row;
}

export function settingOf(rows: readonly Setting[], number: number): Setting | undefined {
  return rows.find((row) => row.number === number || row.again?.some((run) => run.number === number));
}
