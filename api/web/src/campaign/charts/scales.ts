/** From data to pixels and back, with round ticks. */

export interface Scale {
  readonly low: number;
  readonly high: number;
  readonly from: number;
  readonly to: number;
}

/** low to high in data is from..to in pixels; equal ends are moved apart, so that a single value lies in the middle. */
export function linear(low: number, high: number, from: number, to: number): Scale {
  if (low !== high) return { low, high, from, to };
  const room = Math.abs(low) * 0.1 || 1;
  return { low: low - room, high: high + room, from, to };
}

export function toPixel(scale: Scale, value: number): number {
  return scale.from + ((value - scale.low) / (scale.high - scale.low)) * (scale.to - scale.from);
}

export function toValue(scale: Scale, pixel: number): number {
  return scale.low + ((pixel - scale.from) / (scale.to - scale.from)) * (scale.high - scale.low);
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

/** Round values between the ends, about as many as asked for. */
export function ticks(low: number, high: number, about: number): number[] {
  const raw = (high - low) / Math.max(1, about);
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= raw * 0.999)!;
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}
