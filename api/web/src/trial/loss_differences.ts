/** Whether a plan trains as the baseline does: its first losses beside the baseline's, step by step. */

export interface LossStep {
  readonly step: number;
  /** Null where it was no finite number. */
  readonly loss: number | null;
  readonly baseline: number | null;
  /** Loss over the baseline's minus 1; null where one of them is missing. */
  readonly difference: number | null;
}

export function compareLosses(losses: readonly (number | null)[], baseline: readonly (number | null)[]): LossStep[] {
  return losses.map((loss, at) => {
    const base = baseline[at] ?? null;
    const known = loss !== null && base !== null && base !== 0;
    return { step: at + 1, loss, baseline: base, difference: known ? loss / base - 1 : null };
  });
}

/** The step that differs most; null where nothing can be compared. */
export function widest(steps: readonly LossStep[]): LossStep | null {
  let found: LossStep | null = null;
  for (const step of steps) {
    if (step.difference === null) continue;
    if (found === null || Math.abs(step.difference) > Math.abs(found.difference!)) found = step;
  }
  return found;
}
