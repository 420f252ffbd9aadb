/** What a trial says under one name: a dimension of its plan, or something that was measured. Charts, filters and columns
 * all ask here, so that they cannot disagree. */
import taken from "../../api/axes.json";
import type { CampaignView, KnobValue, TrialBrief } from "../../api/types";

export type Value = KnobValue;

/** An axis of every plan, or a knob of the campaign. name: a knob's has `KNOB` before it, since a knob may be called as a
 * measure is. values: in order, where they are words or truth values; numbers are in order of size. */
export interface Dimension {
  readonly name: string;
  readonly label: string;
  readonly title: string;
  readonly values: readonly Value[];
}

const KNOB = "knobs.";

/** Of a plan in which the knob is inactive. */
export const INACTIVE = "–";

export const AXES: readonly Dimension[] = taken.axes.map(({ name, label, title, values }) => ({ name, label, title, values }));

/** Of an axis that no plan names. */
export const DEFAULTS: Readonly<Record<string, Value>> = Object.fromEntries(taken.axes.map((axis) => [axis.name, axis.default]));

export function dimensionsOf({ spec: { knobs = [] } }: Pick<CampaignView, "spec">): Dimension[] {
  return [...AXES, ...knobs.map(({ name, values, meaning }) => knobDimension(name, values, meaning))];
}

export function knobDimension(name: string, values: readonly Value[], meaning = ""): Dimension {
  const numbers = values.every((value) => typeof value === "number");
  return { name: KNOB + name, label: name, title: meaning ? `${name}: ${meaning}` : name, values: numbers ? [] : values };
}

/** The short name of a dimension; of what is none, the name itself. */
export function labelOf(name: string): string {
  return AXES.find((axis) => axis.name === name)?.label ?? (name.startsWith(KNOB) ? name.slice(KNOB.length) : name);
}

/** A number that a trial's own run measured. field: of the trial. unit: s, B, or empty. */
export interface Measured {
  readonly name: string;
  readonly field: keyof TrialBrief;
  readonly label: string;
  readonly unit: string;
}

// Names in addresses and of columns, in the order of reading; others come after them, by the names of their fields.
const SHORT: Readonly<Record<string, string>> = {
  peak_memory_bytes: "memory",
  step_time_s: "step_time",
  tokens_per_s_per_device: "tokens",
  headroom_bytes: "headroom",
};
const FIRST = Object.keys(SHORT);
const place = ({ field }: Measured) => FIRST.indexOf(field) + 1 || FIRST.length + 1;

export const MEASURED: readonly Measured[] = taken.quantities
  .map(({ name, label, unit }) => ({ name: SHORT[name] ?? name, field: name as keyof TrialBrief, label, unit }))
  .sort((a, b) => place(a) - place(b));

const NUMBERS: Readonly<Record<string, (trial: TrialBrief) => Value | null>> = {
  objective: (trial) => trial.objective?.value ?? null,
  ...Object.fromEntries(MEASURED.map(({ name, field }) => [name, (trial: TrialBrief) => trial[field] as number | null])),
  device_hours: (trial) => trial.device_seconds / 3600,
  predicted_step_time: (trial) => trial.expectation?.step_time_s ?? null,
  predicted_memory: (trial) => trial.expectation?.peak_bytes ?? null,
};

const MEASURES: typeof NUMBERS = {
  ...NUMBERS,
  number: (trial) => trial.number,
  verdict: outcomeOf,
  failure: (trial) => trial.failure,
  origin: (trial) => trial.origin,
};

/** Unlike a number that counts. */
export function isContinuous(name: string): boolean {
  return name in NUMBERS;
}

/** Null where the trial has no such value. */
export function valueOf(trial: TrialBrief, name: string): Value | null {
  if (MEASURES[name]) return MEASURES[name](trial);
  if (name.startsWith(KNOB)) return trial.plan.knobs?.[name.slice(KNOB.length)] ?? INACTIVE;
  return (trial.plan as unknown as Record<string, Value>)[name] ?? null;
}

export function outcomeOf(trial: Pick<TrialBrief, "state" | "verdict">): string {
  return trial.verdict ?? trial.state;
}

/** The values that the trials take in a dimension, in order; of a knob, inactive comes first. */
export function levelsOf(trials: readonly TrialBrief[], { name, values }: Dimension): Value[] {
  const found = new Set<Value>();
  for (const trial of trials) {
    const value = valueOf(trial, name);
    if (value !== null) found.add(value);
  }
  const inactive: Value[] = found.delete(INACTIVE) ? [INACTIVE] : [];
  const rank = (level: Value) => values.indexOf(level) + 1 || values.length + 1;
  return [...inactive, ...[...found].sort((a, b) => (values.length > 0 ? rank(a) - rank(b) : Number(a) - Number(b)))];
}

/** Those in which the trials differ, without what follows from the others, as a knob of one value wherever it is active. */
export function varying(trials: readonly TrialBrief[], dimensions: readonly Dimension[]): Dimension[] {
  const varies = (one: Dimension) => levelsOf(trials, one).filter((level) => level !== INACTIVE).length > 1;
  return dimensions.filter((one) => varies(one) && !follows(trials, one.name));
}

/** True for dp where all trials fill the same devices, and for accumulation where all have one global batch. */
function follows(trials: readonly TrialBrief[], name: string): boolean {
  const devices = ({ plan }: TrialBrief) => plan.tp * plan.pp * plan.cp * plan.dp;
  const batch = ({ plan }: TrialBrief) => plan.micro_batch_size * plan.grad_accum_steps * plan.dp;
  const product = name === "dp" ? devices : name === "grad_accum_steps" ? batch : null;
  return product !== null && new Set(trials.map(product)).size === 1;
}
