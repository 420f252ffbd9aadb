/** Which trials a person is looking at: conditions in data units, so that a trial that arrives later is judged by them. */
import type { TrialBrief } from "../../api/types";
import { AXES, isContinuous, outcomeOf, valueOf } from "./values";

export type Condition =
  | { readonly kind: "range"; readonly low: number; readonly high: number }
  | { readonly kind: "words"; readonly words: readonly string[] };

/** text: found in the plan, the reason or a node. on: by the names of `values.ts`; "verdict" is one of them. */
export interface Filters {
  readonly text: string;
  readonly on: Readonly<Record<string, Condition>>;
}

// Of the address, what is no condition.
export const OTHER_KEYS = new Set(["text", "sort", "lines", "x", "show", "across", "up", "slice", "below", "left", "log", "against", "lanes", "pick", "beside", "tab"]);

/** Of a stretch of an axis, and of its whole numbers; null where it has none. */
export function rangeOf([low, high]: readonly [number, number], whole = false): Condition | null {
  const [first, last] = whole ? [Math.ceil(low), Math.floor(high)] : [low, high];
  return first <= last ? { kind: "range", low: first, high: last } : null;
}

export function isEmpty(filters: Filters): boolean {
  return filters.text === "" && Object.keys(filters.on).length === 0;
}

function meets(trial: TrialBrief, name: string, condition: Condition): boolean {
  const value = valueOf(trial, name);
  if (value === null) return false;
  if (condition.kind === "words") return condition.words.includes(String(value));
  return typeof value === "number" && condition.low <= value && value <= condition.high;
}

/** True when the trial meets every condition; except: a name whose condition is left out. */
export function passes(trial: TrialBrief, filters: Filters, except?: string): boolean {
  for (const name in filters.on) {
    if (name !== except && !meets(trial, name, filters.on[name]!)) return false;
  }
  return filters.text === "" || hasText(trial, filters.text);
}

/** By the codes and words of a trial, each anywhere; or by what an axis is, as the page says it: "tensor 4". */
function hasText(trial: TrialBrief, written: string): boolean {
  const text = written.toLowerCase().trim();
  const axis = AXES.find(({ label }) => text.startsWith(`${label.toLowerCase()} `));
  if (axis) return String(valueOf(trial, axis.name)).toLowerCase() === text.slice(axis.label.length + 1).trim();
  const words = [`#${trial.number}`, trial.plan_key, outcomeOf(trial), trial.failure, trial.reason, trial.origin, ...trial.nodes];
  const all = words.join(" ").toLowerCase();
  return text.split(/\s+/).every((word) => all.includes(word));
}

/** A condition with a word added, or taken out where it is there; null where none is left. */
export function withWord(before: Condition | undefined, word: string): Condition | null {
  const words = before?.kind === "words" ? before.words : [];
  const after = words.includes(word) ? words.filter((one) => one !== word) : [...words, word];
  return after.length === 0 ? null : { kind: "words", words: after };
}

/** From the query of an address: `tp=2..4`, `recompute=none&recompute=full`, `text=...`; "" is no condition. */
export function readFilters(query: URLSearchParams): Filters {
  const on: Record<string, Condition> = {};
  for (const name of new Set(query.keys())) {
    const words = query.getAll(name).filter((word) => word !== "");
    if (!OTHER_KEYS.has(name) && words.length > 0) on[name] = readRange(words) ?? { kind: "words", words };
  }
  return { text: query.get("text") ?? "", on };
}

function readRange(words: readonly string[]): Condition | null {
  const ends = words.length === 1 ? words[0]!.split("..").map(Number) : [];
  return ends.length === 2 && ends.every(Number.isFinite) ? { kind: "range", low: ends[0]!, high: ends[1]! } : null;
}

export function written(name: string, condition: Condition): string[] {
  // An address that can be read aloud; brushes of what was measured are given in pixels, which are coarser.
  const number = (value: number) => String(isContinuous(name) ? Number(value.toPrecision(6)) : value);
  return condition.kind === "range" ? [`${number(condition.low)}..${number(condition.high)}`] : [...condition.words];
}
