/** Where every trial crosses every axis of the parallel coordinates, and what a stretch of an axis means.
 *
 * A position is 0 at the bottom of an axis to 1 at its top. Plans take few values, so an axis of levels gives each a band
 * of equal height, in which the trials lie apart by a jitter that is always the same for a trial.
 */
import type { TrialBrief } from "../../api/types";
import type { Condition } from "../data/filters";
import { type Dimension, levelsOf, type Value, valueOf } from "../data/values";
import { type Scale, toPixel, toValue } from "./scales";

/** levels: empty on an axis of measured numbers, of which the scale is. */
export interface Axis {
  readonly name: string;
  readonly levels: readonly Value[];
  readonly scale?: Scale;
}

/** Heights in pixels: of the ends of an axis, and of the rail of what has no value. */
export const TOP = 44;
export const BOTTOM = 304;
export const RAIL = 326;

/** Of a band, how much the trials fill: the gaps keep levels apart. */
const FILLED = 0.6;

export function levelAxis(trials: readonly TrialBrief[], dimension: Dimension): Axis {
  return { name: dimension.name, levels: levelsOf(trials, dimension) };
}

/** Null where the trial has no value: its line leaves the axis for the rail of trials without a result. */
export function positionOn(axis: Axis, trial: TrialBrief): number | null {
  const value = valueOf(trial, axis.name);
  if (value === null) return null;
  if (axis.scale) return toPixel(axis.scale, value as number);
  const level = axis.levels.indexOf(value);
  return level < 0 ? null : bandMiddle(axis, level) + (jitter(trial.number, axis.name) * FILLED) / axis.levels.length;
}

export function bandMiddle(axis: Axis, level: number): number {
  return (level + 0.5) / axis.levels.length;
}

/** Between -0.5 and 0.5, always the same for a trial on an axis. */
export function jitter(trial: number, axis: string): number {
  let hash = Math.imul(trial + 1, 0x9e3779b1);
  for (let index = 0; index < axis.length; index++) hash = Math.imul(hash ^ axis.charCodeAt(index), 0x85ebca6b);
  hash ^= hash >>> 15;
  hash = Math.imul(hash, 0x2c1b3c6d);
  return ((hash ^ (hash >>> 13)) >>> 0) / 2 ** 32 - 0.5;
}

/** The condition that a stretch from one position to another stands for: the levels whose middle lies in it, or the one
 * it lies in. */
export function conditionOf(axis: Axis, one: number, other: number): Condition {
  const [from, to] = [Math.max(0, Math.min(one, other)), Math.min(1, Math.max(one, other))];
  if (axis.scale) {
    const ends = [toValue(axis.scale, from), toValue(axis.scale, to)];
    return { kind: "range", low: Math.min(...ends), high: Math.max(...ends) };
  }
  const inside = axis.levels.flatMap((_, level) => {
    const middle = bandMiddle(axis, level);
    return from <= middle && middle <= to ? [level] : [];
  });
  const touched = Math.min(axis.levels.length - 1, Math.floor(((from + to) / 2) * axis.levels.length));
  const chosen = axis.levels.slice(inside[0] ?? touched, (inside.at(-1) ?? touched) + 1);
  if (chosen.every((level) => typeof level === "number")) {
    return { kind: "range", low: chosen[0] as number, high: chosen.at(-1) as number };
  }
  return { kind: "words", words: chosen.map(String) };
}

function holds(condition: Condition, value: Value): boolean {
  if (condition.kind === "words") return condition.words.includes(String(value));
  return typeof value === "number" && condition.low <= value && value <= condition.high;
}

/** The stretches of an axis that a condition covers, each from a lower to a higher position. */
export function stretches(axis: Axis, condition: Condition): [number, number][] {
  const { scale, levels } = axis;
  if (!scale) return levels.flatMap((level, at): [number, number][] => (holds(condition, level) ? [[at / levels.length, (at + 1) / levels.length]] : []));
  if (condition.kind === "words") return [];
  const ends = [condition.low, condition.high].map((end) => Math.min(1, Math.max(0, toPixel(scale, end))));
  return [[Math.min(...ends), Math.max(...ends)]];
}

/** The line of one trial: a height per axis in pixels, `RAIL` where it has no value. */
export interface Line {
  readonly trial: TrialBrief;
  readonly heights: Float32Array;
}

export function linesOf(trials: readonly TrialBrief[], axes: readonly Axis[]): Line[] {
  const height = (position: number | null) => (position === null ? RAIL : BOTTOM - position * (BOTTOM - TOP));
  return trials.map((trial) => ({ trial, heights: Float32Array.from(axes, (axis) => height(positionOn(axis, trial))) }));
}

/** The line nearest to a point, if one is within `reach` pixels above or below it. axes: where each is, in pixels. */
export function nearest(lines: readonly Line[], axes: readonly number[], x: number, y: number, reach: number): Line | null {
  const right = axes.findIndex((at) => at >= x);
  if (right < 0 || (right === 0 && axes[0]! - x > reach)) return null;
  const left = Math.max(0, right - 1);
  const [from, to] = [axes[left]!, axes[right]!];
  const along = to === from ? 0 : (x - from) / (to - from);
  let found: Line | null = null;
  let least = reach;
  for (const line of lines) {
    const away = Math.abs(line.heights[left]! * (1 - along) + line.heights[right]! * along - y);
    if (away <= least) [found, least] = [line, away];
  }
  return found;
}
