/** What an axis of a chart shows, before the chart knows its room: numbers, or levels side by side. */
import { bytes, duration, number } from "../../format";
import type { Value } from "../data/values";
import { extent, inWords, linear, logarithmic, logTicks, type Scale, type Steps, type Tick, ticks } from "./scales";

export interface Axis {
  readonly title: string;
  readonly scale: (from: number, to: number) => Scale;
  /** about: as many as there is room for. */
  readonly ticks: (scale: Scale, about: number) => readonly Tick[];
}

interface Look {
  readonly title?: string;
  readonly format?: (value: number, digits: number) => string;
  readonly steps?: Steps;
  /** Where all values are above 0. */
  readonly log?: boolean;
  /** Room beyond the ends, of their distance. */
  readonly room?: number;
  /** The axis begins at 0, or ends above what there is. */
  readonly fromZero?: boolean;
}

/** Of the numbers from the least to the largest of these. */
export function numbers(values: Iterable<number>, { title = "", format = number, steps = "round", log = false, room = 0, fromZero = false }: Look = {}): Axis {
  const ends = extent(values);
  if (!ends) return { title, scale: (from, to) => linear(0, 1, from, to), ticks: () => [] };
  const [low, high] = ends;
  if (log && low > 0) {
    const more = (high / low) ** room;
    return { title, scale: (from, to) => logarithmic(low / more, high * more, from, to), ticks: (scale) => inWords(logTicks(scale, steps), format) };
  }
  const more = (high - low) * room;
  const [first, last] = fromZero ? [Math.min(0, low), (Math.max(0, high) || 1) * (1 + room)] : [low - more, high + more];
  return { title, scale: (from, to) => linear(first, last, from, to), ticks: (scale, about) => inWords(ticks(scale.low, scale.high, about, steps), format) };
}

/** Of numbers of trials, steps and ranks. */
export function whole(values: readonly number[], title: string): Axis {
  const axis = numbers(values, { title, steps: "whole", room: 0.01, format: (value) => number(value, 20) });
  const [low, high] = extent(values) ?? [0, 0];
  return { ...axis, ticks: (scale, about) => axis.ticks(scale, about).filter(([at]) => low <= at && at <= high) };
}

export function byteNumbers(values: Iterable<number>, look: Look = {}): Axis {
  return numbers(values, { steps: "bytes", format: bytes, ...look });
}

export function times(values: Iterable<number>, look: Look = {}): Axis {
  return numbers(values, { steps: "clock", format: duration, ...look });
}

/** Of values that are counted in doublings, such as degrees and nodes: only those that occur have a tick. */
export function doublings(values: Iterable<number>, title: string): Axis {
  const found = [...new Set(values)].sort((a, b) => a - b);
  const [low, high] = extent(found) ?? [1, 2];
  return {
    title,
    scale: (from, to) => logarithmic(low / 2 ** 0.3, high * 2 ** 0.3, from, to),
    ticks: () => found.map((value) => [value, number(value, 20)]),
  };
}

/** Of words or values side by side: the first lies at 0, the next at 1. */
export function levels(values: readonly Value[], title: string): Axis {
  return {
    title,
    scale: (from, to) => linear(-0.5, Math.max(0, values.length - 1) + 0.5, from, to),
    ticks: () => values.map((value, at) => [at, String(value)]),
  };
}
