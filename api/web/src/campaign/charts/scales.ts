/** From data to pixels and back, with ticks that are round, whole where they count, and of which no two read alike. */

export interface Scale {
  readonly low: number;
  readonly high: number;
  readonly from: number;
  readonly to: number;
  /** Equal ratios are equally far apart, not equal differences. */
  readonly log: boolean;
}

/** low to high in data is from..to in pixels; equal ends are moved apart, so that a single value lies in the middle. */
export function linear(low: number, high: number, from: number, to: number): Scale {
  if (low !== high) return { low, high, from, to, log: false };
  const room = Math.abs(low) * 0.1 || 1;
  return { low: low - room, high: high + room, from, to, log: false };
}

/** Of values above 0. */
export function logarithmic(low: number, high: number, from: number, to: number): Scale {
  return low === high ? { low: low / 1.1, high: high * 1.1, from, to, log: true } : { low, high, from, to, log: true };
}

/** Of a log scale 0 and less lie at its lower end. */
export function toPixel({ low, high, from, to, log }: Scale, value: number): number {
  const along = log ? Math.log(Math.max(low, value) / low) / Math.log(high / low) : (value - low) / (high - low);
  return from + along * (to - from);
}

export function toValue({ low, high, from, to, log }: Scale, pixel: number): number {
  const along = (pixel - from) / (to - from);
  return log ? low * (high / low) ** along : low + along * (high - low);
}

/** The smallest and the largest; null for no values. */
export function extent(values: Iterable<number>): [number, number] | null {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : null;
}

/** The first of these, times a power of ten, that is not less. */
const ROUND = [1, 2, 2.5, 5, 10];
const WHOLE = [1, 2, 5, 10];
const BINARY = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
const CLOCK_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

/** How the steps between the ticks of an axis are found. */
export type Steps = "round" | "whole" | "bytes" | "clock";

function stepOf(least: number, steps: Steps): number {
  if (steps === "clock" && least >= 1) return CLOCK_S.find((step) => step >= least * 0.999) ?? Math.ceil(least / 604800) * 604800;
  if (steps === "bytes") {
    const unit = 1024 ** Math.max(0, Math.floor(Math.log(least) / Math.log(1024)));
    return BINARY.find((factor) => factor * unit >= least * 0.999)! * unit;
  }
  if (steps === "whole" && least <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(least));
  return (steps === "whole" ? WHOLE : ROUND).find((factor) => factor * power >= least * 0.999)! * power;
}

/** Round values between the ends, about as many as asked for. */
export function ticks(low: number, high: number, about: number, steps: Steps = "round"): number[] {
  const least = (high - low) / Math.max(1, about);
  if (!(least > 0)) return [low];
  const step = stepOf(least, steps);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

/** Of a log scale: powers of two where bytes are counted, else 1, 2 and 5 of each power of ten; of less than that as on a linear one. */
export function logTicks({ low, high }: Scale, steps: Steps): number[] {
  const [base, factors] = steps === "bytes" ? [2, [1]] : [10, [1, 2, 5]];
  const [first, last] = [low, high].map((end) => Math.floor(Math.log(end) / Math.log(base))) as [number, number];
  const all = Array.from({ length: last - first + 1 }, (_, at) => factors.map((factor) => Number((factor * base ** (first + at)).toPrecision(12)))).flat();
  const found = all.filter((value) => low <= value && value <= high);
  return found.length < 3 ? ticks(low, high, 6, steps) : found;
}

/** A tick: where, and what is written there. */
export type Tick = readonly [at: number, words: string];

const MOST_DIGITS = 9;

/** The ticks in words: with as many digits as tell them apart, and no zeros that say nothing; where no digits do, every second
 * tick, every third, and so on. */
export function inWords(values: readonly number[], format: (value: number, digits: number) => string, every = 1): Tick[] {
  const kept = values.filter((_, at) => at % every === 0);
  for (let digits = 3; digits <= MOST_DIGITS; digits++) {
    const words = kept.map((value) => plain(format(value, digits)));
    if (new Set(words).size === words.length) return kept.map((value, at) => [value, words[at]!]);
  }
  return inWords(values, format, every + 1);
}

/** "1.50 GiB" is "1.5 GiB". */
function plain(text: string): string {
  return text.replace(/(\d)\.(\d*?)0+(?!\d)/, (_, whole: string, part: string) => (part ? `${whole}.${part}` : whole));
}

/** About what a letter takes of a line of 11 px. */
export const LETTER_PX = 6.2;
export const BOLD_PX = 7.2;

/** Those of the ticks that do not overlap along a line: all, or every second, third ... */
export function apart(all: readonly Tick[], scale: Scale): readonly Tick[] {
  for (let every = 1; every < all.length; every++) {
    const kept = all.filter((_, at) => at % every === 0);
    const free = kept.every(([at, words], index) => {
      const next = kept[index + 1];
      return !next || Math.abs(toPixel(scale, next[0]) - toPixel(scale, at)) >= ((words.length + next[1].length) / 2) * LETTER_PX + 8;
    });
    if (free) return kept;
  }
  return all.slice(0, 1);
}
