/** Specs as text: what the form writes, and where in a text a mistake is. */
import type { Mistake } from "../api/problem";
import { BASELINE, type SpecForm } from "./create_form";

/** The form as a spec in YAML, as the examples are written. */
export function specOf(form: SpecForm): string {
  const { workload: kind, command, directory, script, dtype } = form;
  const own: Record<string, Record<string, string>> = { torch: { dtype }, command: { command }, simulated: {}, deepspeed: { directory, script } };
  const told = own[kind] ?? { directory };
  const entries = {
    name: scalar(form.name),
    model: scalar(form.model),
    cluster: form.nodes ? flow({ preset: form.cluster, nodes: form.nodes }) : scalar(form.cluster),
    global_batch_size: scalar(form.globalBatch),
    workload: Object.values(told).some(Boolean) ? flow({ kind, ...told }) : scalar(kind),
    catalogs: form.catalogs.length ? `[${form.catalogs.map(scalar).join(", ")}]` : "",
    baseline: form.baseline ? flow(Object.fromEntries(BASELINE.map((axis) => [axis, form[axis]]))) : "",
    objective: scalar(form.objective),
    search: scalar(form.search),
    runner: scalar(form.runner),
    budget: flow({ trials: form.trials, device_hours: form.deviceHours, wall_time_s: seconds(form.wallHours) }),
    parallel: scalar(form.parallel),
  };
  return filled(entries).map(([key, value]) => `${key}: ${value}\n`).join("");
}

/** Whether a text starts a training, and is no spec. */
export function isLaunch(text: string): boolean {
  return /^(#!|#(SBATCH|PBS)\b|\s*(srun|sbatch|torchrun|python3?|deepspeed|accelerate)\s)/m.test(text);
}

/** An imported spec without its open questions. */
export function answered(spec: string): string {
  return spec.replace(/^open_questions:\n(-.*\n( .*\n)*)*/m, "");
}

function lineOfPath(spec: string, path: string): number {
  return lineOfPointer(spec, `/${path.replaceAll(".", "/")}`) ?? -1;
}

/** What stands at a path that has a line of its own; null where it has none. */
export function answerOf(spec: string, path: string): string | null {
  const [key, value = ""] = /^\s*([^:]*): ?(.*)$/.exec(spec.split("\n")[lineOfPath(spec, path)] ?? "")?.slice(1) ?? [];
  return key === path.split(".").pop() ? value : null;
}

export function withAnswer(spec: string, path: string, value: string): string {
  const [lines, at] = [spec.split("\n"), lineOfPath(spec, path)];
  return lines.map((line, index) => (index === at ? `${line.slice(0, line.indexOf(":") + 1)} ${value}` : line)).join("\n");
}

function seconds(hours: string): string {
  const value = Number(hours);
  return hours && Number.isFinite(value) ? String(Math.round(value * 3600)) : hours;
}

function flow(entries: Record<string, string>): string {
  const inside = filled(entries).map(([key, value]) => `${key}: ${scalar(value)}`);
  return inside.length ? `{${inside.join(", ")}}` : "";
}

function filled(entries: Record<string, string>): [string, string][] {
  return Object.entries(entries).filter(([, value]) => value !== "");
}

/** Quoted where YAML could read it as something else than the word or number that it is. */
function scalar(given: string): string {
  const text = given.trim();
  if (text === "" || /^-?\d+(\.\d+)?$/.test(text)) return text;
  const word = /^[A-Za-z][A-Za-z0-9._-]*$/.test(text) && !/^(true|false|yes|no|on|off|null|y|n)$/i.test(text);
  return word ? text : JSON.stringify(text);
}

/** How the text is sent. JSON is not sent as YAML: YAML 1.1 reads 1e-7 as a word. */
export function typeOf(text: string): "application/json" | "application/yaml" {
  try {
    JSON.parse(text);
    return "application/json";
  } catch {
    return "application/yaml";
  }
}

/** The line that a mistake is about, from 0; null where the text does not show one. */
export function lineOf(text: string, { pointer, detail }: Mistake): number | null {
  const said = /\bline (\d+)/.exec(pointer === "" ? detail : "");
  if (said) return Math.min(Number(said[1]), text.split("\n").length) - 1;
  return lineOfPointer(text, pointer);
}

/** The line of the deepest key along a JSON pointer that the text holds; keys in one line (`{a: 1}`) share it. */
export function lineOfPointer(text: string, pointer: string): number | null {
  const keys = pointer.split("/").slice(1).map((part) => part.replace(/~1/g, "/").replace(/~0/g, "~"));
  const lines = text.split("\n");
  let found: number | null = null;
  let from = 0;
  let deeperThan = -1;
  for (const key of keys) {
    const at = /^\d+$/.test(key) ? itemLine(lines, from, deeperThan, Number(key)) : keyLine(lines, from, deeperThan, key);
    if (at === null) return found;
    found = at;
    deeperThan = at === from && from !== 0 ? deeperThan : indent(lines[at] ?? "");
    from = at;
  }
  return found;
}

/** Of the lines below `from` that hold the key, the one where it opens the line least deep: the others are of children. */
function keyLine(lines: string[], from: number, deeperThan: number, key: string): number | null {
  const name = `["']?${key.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}["']?\\s*:`;
  const holds = new RegExp(`(^|[\\s{,\\[-])${name}`);
  const opens = new RegExp(`^[\\s{-]*${name}`);
  let best: number | null = null;
  let depth = Infinity;
  for (let at = from; at < lines.length; at++) {
    const line = lines[at] ?? "";
    if (at > from && line.trim() && indent(line) <= deeperThan) break;
    if (line.trimStart().startsWith("#") || !holds.test(line)) continue;
    const deep = opens.test(line) ? indent(line) : 1e6 + at;
    if (deep < depth) [best, depth] = [at, deep];
  }
  return best;
}

/** Where the n-th item of a block list below `from` is; a list in one line has all its items there. */
function itemLine(lines: string[], from: number, deeperThan: number, number: number): number | null {
  let seen = -1;
  let dash = -1;
  for (let at = from + 1; at < lines.length; at++) {
    const line = lines[at] ?? "";
    if (!line.trim()) continue;
    if (indent(line) < deeperThan || (indent(line) === deeperThan && !line.trimStart().startsWith("-"))) break;
    if (!line.trimStart().startsWith("-")) continue;
    if (dash < 0) dash = indent(line);
    if (indent(line) === dash && ++seen === number) return at;
  }
  return seen < 0 ? from : null;
}

function indent(line: string): number {
  return line.length - line.trimStart().length;
}
