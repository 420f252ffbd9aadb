/** What a trial says under one name: a dimension of its plan, or something that was measured. Charts, filters and columns
 * all ask here, so that they cannot disagree. */
import axes from "../../api/axes.json";
import type { TrialBrief } from "../../api/types";

export type Value = number | string | boolean;

/** The axes of a plan in the order of reading, with their short labels. */
export const DIMENSIONS: Readonly<Record<string, string>> = Object.fromEntries(axes.map(({ name, label }) => [name, label]));

const MEASURES: Readonly<Record<string, (trial: TrialBrief) => Value | null>> = {
  number: (trial) => trial.number,
  objective: (trial) => trial.objective?.value ?? null,
  memory: (trial) => trial.peak_memory_bytes,
  verdict: outcomeOf,
  failure: (trial) => trial.failure,
  origin: (trial) => trial.origin,
};

/** Null where the trial has no such value. */
export function valueOf(trial: TrialBrief, name: string): Value | null {
  const measure = MEASURES[name];
  if (measure !== undefined) return measure(trial);
  return (trial.plan as unknown as Record<string, Value>)[name] ?? null;
}

/** The verdict of a trial that has ended, else its state. */
export function outcomeOf(trial: TrialBrief): string {
  return trial.verdict ?? trial.state;
}

/** The values that the trials take under a name, in order: numbers by size, words as they first came. */
export function levelsOf(trials: readonly TrialBrief[], name: string): Value[] {
  const found = new Set<Value>();
  for (const trial of trials) {
    const value = valueOf(trial, name);
    if (value !== null) found.add(value);
  }
  const levels = [...found];
  return levels.every((level) => typeof level === "number")
    ? (levels as number[]).sort((a, b) => a - b)
    : levels.sort((a, b) => rankOf(a) - rankOf(b));
}

// Words from the least to the most of their kind, as the plan's enums list them.
const WORDS: readonly Value[] = axes.flatMap(({ values }): readonly Value[] => values);

/** True for an axis whose values are words or truth values. */
export function isWord(name: string): boolean {
  return axes.some((axis) => axis.name === name && axis.values.length > 0);
}

function rankOf(level: Value): number {
  const rank = WORDS.indexOf(level);
  return rank < 0 ? WORDS.length : rank;
}

/** The dimensions in which the trials differ, without those that follow from the others (see `follows`). */
export function varying(trials: readonly TrialBrief[]): string[] {
  return Object.keys(DIMENSIONS).filter((name) => levelsOf(trials, name).length > 1 && !follows(trials, name));
}

/** True for dp where all trials fill the same devices, and for accumulation where all have one global batch. */
function follows(trials: readonly TrialBrief[], name: string): boolean {
  const product =
    name === "dp"
      ? ({ plan }: TrialBrief) => plan.tp * plan.pp * plan.cp * plan.dp
      : name === "grad_accum_steps"
        ? ({ plan }: TrialBrief) => plan.micro_batch_size * plan.grad_accum_steps * plan.dp
        : null;
  return product !== null && new Set(trials.map(product)).size === 1;
}
