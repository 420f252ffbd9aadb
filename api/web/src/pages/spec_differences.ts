/** Where specs differ. */
import { UNKNOWN } from "../format";

/** path: dotted, a knob by its name. values: in the order of the specs; "–" where a spec has none. */
export interface Difference {
  readonly path: string;
  readonly values: readonly string[];
}

/** What follows from a name that differs. */
const FOLLOW = { "model.name": /^model\./, "cluster.device.name": /^cluster\.\w+\./ };

/** But for what people call them and say of them. */
export function specDifferences(specs: readonly object[]): Difference[] {
  const flat = specs.map((spec) => new Map(leaves(spec, "")));
  const paths = [...new Set(flat.flatMap((leaf) => [...leaf.keys()]))];
  const found = paths.map((path) => ({ path, values: flat.map((leaf) => leaf.get(path) || UNKNOWN) })).filter(({ values }) => new Set(values).size > 1);
  const told = Object.entries(FOLLOW).filter(([name]) => found.some(({ path }) => path === name));
  return found.filter(({ path }) => !/^(name|tags|notes)$|_follow$/.test(path) && told.every(([name, rest]) => path === name || !rest.test(path)));
}

function leaves(value: unknown, path: string): [string, string][] {
  if (value == null) return [];
  const shown = (one: unknown) => String(Number.isInteger(one) || typeof one !== "number" ? one : Number(one.toPrecision(6)));
  if (typeof value !== "object") return [[path, shown(value)]];
  if (Array.isArray(value) && value.every((one) => typeof one !== "object")) return [[path, value.map(shown).join(", ")]];
  return Object.entries(value).flatMap(([key, inner]) => leaves(inner, `${path}${path && "."}${Array.isArray(value) ? (inner?.name ?? key) : key}`));
}
