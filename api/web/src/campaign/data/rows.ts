/** The order of the table: trials without the sorted value come last, upwards and downwards alike. */
import type { TrialBrief } from "../../api/types";
import type { Sort } from "../../ui/table";
import { INACTIVE, type Value, valueOf } from "./values";

/** What a column sorts by; null sorts last. */
function sortValue(trial: TrialBrief, column: string): Value | null {
  if (column === "expected") return surprise(trial);
  if (column === "nodes") return trial.nodes.join(" ") || null;
  if (column === "gain") return trial.gain_over_baseline;
  const value = valueOf(trial, column);
  return value === INACTIVE ? null : value;
}

/** Measured over expected step minus 1: above 0 it was slower. */
export function surprise({ step_time_s, expectation }: TrialBrief): number | null {
  return step_time_s === null || expectation === null ? null : step_time_s / expectation.step_time_s - 1;
}

export function inOrder(trials: readonly TrialBrief[], { key: column, descending }: Sort): TrialBrief[] {
  const keyed = trials.map((trial) => ({ trial, key: sortValue(trial, column) }));
  keyed.sort((a, b) => {
    const byNumber = a.trial.number - b.trial.number;
    if (a.key === null || b.key === null) return Number(a.key === null) - Number(b.key === null) || byNumber;
    // Of a knob that takes words beside numbers, the numbers come first.
    const kind = Number(typeof a.key === "string") - Number(typeof b.key === "string");
    const sign = kind || (a.key < b.key ? -1 : a.key > b.key ? 1 : 0);
    return (descending ? -sign : sign) || byNumber;
  });
  return keyed.map(({ trial }) => trial);
}
