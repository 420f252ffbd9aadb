/** What an axis of a chart can be: every number of a trial, and every dimension of its plan. */
import { bareObjective, bytes, number, share, stepTime } from "../../format";
import { type Goal, worded } from "./goal";
import { type Dimension, labelOf, MEASURED } from "./values";

type Words = (value: number, digits?: number) => string;

const plain: Words = (value, digits = 4) => number(value, digits);

const BY_UNIT: Readonly<Record<string, Words>> = { s: stepTime, B: bytes, share };

const MEASURES: Readonly<Record<string, readonly [label: string, words: Words]>> = {
  ...Object.fromEntries(MEASURED.map(({ name, label, unit }) => [name, [label, BY_UNIT[unit] ?? plain] as const])),
  predicted_step_time: ["predicted step time", stepTime],
  predicted_memory: ["predicted memory", bytes],
  device_hours: ["device-hours", plain],
  number: ["trial", String],
};

export interface Quantity {
  readonly name: string;
  readonly label: string;
  /** What its levels are in order; undefined of what is measured. */
  readonly dimension?: Dimension;
}

/** dimensions: those in which the trials differ. A measure that is the objective itself comes once. */
export function quantitiesOf(goal: Goal, dimensions: readonly Dimension[]): Quantity[] {
  const measures = Object.entries(MEASURES).map(([name, [label]]) => ({ name, label: worded(goal, label) })).filter(({ label }) => label !== goal.label);
  return [{ name: "objective", label: goal.label }, ...measures, ...dimensions.map((dimension) => ({ name: dimension.name, label: dimension.label, dimension }))];
}

export function quantityLabel(name: string, goal: Goal): string {
  return name === "objective" ? goal.label : worded(goal, MEASURES[name]?.[0] ?? labelOf(name));
}

export function isBytes(name: string): boolean {
  return MEASURES[name]?.[1] === bytes;
}

export function quantityWords(name: string, value: number, goal: Goal, digits?: number): string {
  return name === "objective" ? bareObjective(value, goal.unit, digits) : (MEASURES[name]?.[1] ?? String)(value, digits);
}
