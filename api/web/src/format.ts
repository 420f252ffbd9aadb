/** Numbers as people read them, each with its unit. null and undefined are "–": not known is not zero. */
import type { Estimate } from "./api/types";

export const UNKNOWN = "–";
const MINUS = "−";

type Maybe = number | null | undefined;

function known(format: (value: number, digits?: number) => string): (value: Maybe, digits?: number) => string {
  return (value, digits) => (value == null ? UNKNOWN : format(value, digits));
}

/** Three significant digits by default, thousands apart with a thin space: 1 234 567, 0.0123. */
export function number(value: Maybe, digits = 3): string {
  if (value == null || !Number.isFinite(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-6)) return value.toExponential(digits - 1).replaceAll("-", MINUS);
  const whole = Math.floor(Math.log10(Number(size.toPrecision(digits)) || 1)) + 1;
  const decimals = Math.max(0, Math.min(20, digits - whole));
  const [before = "0", after] = Math.abs(value).toFixed(Number.isInteger(value) ? 0 : decimals).split(".");
  const grouped = before.length > 4 ? before.replace(/\B(?=(\d{3})+$)/g, "\u202f") : before;
  const text = after === undefined ? grouped : `${grouped}.${after}`;
  return value < 0 && Number(text.replace(/\u202f/g, "")) !== 0 ? MINUS + text : text;
}

/** Whole, with the thousands apart. */
export const count = known((value) => number(Math.round(value), 20));

/** "1 trial", "2 trials". */
export function counted(number: number, noun: string): string {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** At most three digits, and no zeros that tell nothing: 0.05, 19.1, 3. For budgets and what is left of them. */
export function amount(value: Maybe): string {
  if (value == null || !Number.isFinite(value)) return UNKNOWN;
  const rounded = Math.abs(value) >= 1000 ? Math.round(value) : Number(value.toPrecision(3));
  return number(rounded).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}

/** A short time, such as of a step: 850 µs, 12.3 ms, 1.23 s. */
export const stepTime = known((seconds, digits = 3) => {
  const size = Math.abs(seconds);
  if (size !== 0 && size < 0.9995e-3) return `${number(seconds * 1e6, digits)} µs`;
  if (size !== 0 && size < 0.9995) return `${number(seconds * 1e3, digits)} ms`;
  return `${number(seconds, digits)} s`;
});

/** How long something took or takes: 45 s, 12 min, 3 h 20 min, 2 d 4 h. */
export const duration = known((seconds, digits = 2) => {
  if (seconds < 99.5) return `${number(seconds, digits)} s`;
  if (digits > 3) {
    const exact = Number(seconds.toFixed(digits - 4));
    return two(Math.floor(exact / 60), "min", Number((exact % 60).toFixed(digits - 4)), "s");
  }
  const minutes = Math.round(seconds / 60);
  if (minutes < 100) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return two(hours, "h", minutes % 60, "min");
  const all = Math.round(minutes / 60);
  return two(Math.floor(all / 24), "d", all % 24, "h");
});

function two(large: number, unit: string, small: number, smallUnit: string): string {
  return small ? `${large} ${unit} ${small} ${smallUnit}` : `${large} ${unit}`;
}

/** Work of devices, in the unit that fits: 0.23 device-seconds, 12 device-minutes, 3.5 device-hours. */
export const deviceTime = known((hours) => {
  const [size, unit] = hours === 0 || hours >= 0.995 ? [1, "hour"] : hours * 60 >= 0.995 ? [60, "minute"] : [3600, "second"];
  const text = amount(hours * size);
  return `${text} device-${unit}${text === "1" ? "" : "s"}`;
});

/** A range of durations; one where both ends read alike. */
export function span(low: Maybe, high: Maybe, format: (value: Maybe) => string = duration): string {
  const [from, to] = [format(low), format(high)];
  return from === to ? from : `${from} to ${to}`;
}

/** How long ago, from `now` in milliseconds: "just now", "5 min ago", "3 d ago". */
export function ago(time: string | null | undefined, now = Date.now()): string {
  if (!time) return UNKNOWN;
  const seconds = Math.max(0, (now - Date.parse(time)) / 1000);
  if (seconds < 10) return "just now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 36 * 3600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} d ago`;
}

/** A time in the reader's zone, to the second. */
export function clock(time: string | null | undefined): string {
  if (!time) return UNKNOWN;
  const at = new Date(time);
  const two = (value: number) => String(value).padStart(2, "0");
  // Not toLocaleString: the first use of it keeps a browser busy for 20 ms.
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${[at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":")}`;
}

const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"] as const;

/** 512 B, 1.50 MiB, 74.2 GiB. */
export const bytes = known((value, digits = 3) => {
  let size = value;
  let unit = 0;
  while (Math.abs(size) >= 1023.5 && unit < BYTE_UNITS.length - 1) {
    size /= 1024;
    unit++;
  }
  return `${number(size, digits)} ${BYTE_UNITS[unit]}`;
});

/** 1.23 k, 4.56 M, 70.6 B: for parameters and tokens/s where room is short. */
export const short = known((value) => {
  const units: [number, string][] = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e4, "k"]];
  const found = units.find(([size]) => Math.abs(value) >= size * 0.9995);
  if (!found) return number(value);
  return `${number(value / (found[1] === "k" ? 1e3 : found[0]))} ${found[1]}`;
});

export const tokensPerS = known((value) => `${short(value)} tokens/s`);

// Of a percentage, what is below that is told as that: its digits would say nothing.
const LEAST_SHARE = 1e-4;

/** A share as a percentage: 0.123 is 12.3 %. */
export const share = known((value, digits = 3) => value !== 0 && Math.abs(value) < LEAST_SHARE ? "< 0.01 %" : `${number(value * 100, digits)} %`);

/** A probability: never a plain 0 % or 100 %, which nothing predicted is. */
export const probability = known((value) => {
  if (value > 0.995) return "> 99 %";
  if (value < 0.005) return "< 1 %";
  return `${Math.round(value * 100)} %`;
});

/** A gain as a signed percentage: 0.25 is +25.0 %. */
export const gain = known((value) => `${gainNumber(value)} %`);

/** "+24.9 to +25.3 %". */
export function gainInterval(estimate: Estimate | null | undefined): string {
  return estimate ? `${gainNumber(estimate.low)} to ${gainNumber(estimate.high)} %` : UNKNOWN;
}

function gainNumber(value: number): string {
  const percent = value * 100;
  const text = Math.abs(percent) >= 99.95 ? number(Math.round(Math.abs(percent)), 20) : Math.abs(percent).toFixed(1);
  return Number(text.replace(/\u202f/g, "")) === 0 ? text : (percent < 0 ? MINUS : "+") + text;
}

/** The ends of an interval: "1.20 to 1.31 s". Both have the same unit where `format` ends in one. */
export function interval(low: Maybe, high: Maybe, format: (value: Maybe) => string = number): string {
  const [from, to] = [format(low), format(high)];
  if (from === to) return from;
  const [head, unit] = [from.split(" "), to.split(" ").slice(1).join(" ")];
  return unit && head.slice(1).join(" ") === unit ? `${head[0]} to ${to}` : `${from} to ${to}`;
}

/** An objective's value beside a label that says its unit: only a short unit stands with each number. */
export function bareObjective(value: Maybe, unit: string, digits = 4): string {
  return objective(value, unit === "s" || unit === "%" ? unit : "", digits);
}

/** An objective's value with its unit as the service names it ("s", "%", "tokens/s/device", "TFLOP/s"). */
export function objective(value: Maybe, unit: string, digits = 4): string {
  if (value == null) return UNKNOWN;
  if (unit === "s") return stepTime(value, Math.max(3, digits - 1));
  return unit ? `${number(value, digits)} ${unit}` : number(value, digits);
}
