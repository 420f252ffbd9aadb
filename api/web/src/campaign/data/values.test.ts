import { expect, test } from "vitest";
import type { CampaignView, Knob, Plan } from "../../api/types";
import { passes, readFilters, written } from "./filters";
import { inOrder } from "./rows";
import { AXES, dimensionsOf, knobDimension, labelOf, levelsOf, valueOf, varying } from "./values";
import { trial } from "./trial.fixture";

const axis = (name: string) => AXES.find((one) => one.name === name)!;
const named = (trials: Parameters<typeof varying>[0], dimensions = AXES) => varying(trials, dimensions).map(({ name }) => name);
const withKnobs = (number: number, knobs: Plan["knobs"] = {}) => trial(number, { knobs });

test("a dimension that follows from the others is no axis", () => {
  const trials = [trial(0, { tp: 1, dp: 8, grad_accum_steps: 1 }), trial(1, { tp: 2, dp: 4, grad_accum_steps: 2 })];
  expect(named(trials)).toEqual(["tp"]);
});

test("dp is an axis where the trials fill different devices", () => {
  expect(named([trial(0, { dp: 8 }), trial(1, { dp: 4 })])).toEqual(["dp"]);
});

test("levels are in order of size, and words in the order of their kind", () => {
  const trials = [8, 16, 2].map((tp, at) => trial(at, { tp, recompute: (["full", "none", "selective"] as const)[at]! }));
  expect(levelsOf(trials, axis("tp"))).toEqual([2, 8, 16]);
  expect(levelsOf(trials, axis("recompute"))).toEqual(["none", "selective", "full"]);
});

test("a campaign's knobs are dimensions beside the axes, and may be called as a measure or a column is", () => {
  const knobs = [{ name: "nodes", values: [2, 4], meaning: "" }, { name: "memory", values: ["a", "b"], meaning: "Of <what>." }] as unknown as Knob[];
  const dimensions = dimensionsOf({ spec: { knobs } } as unknown as CampaignView);
  expect(dimensions.slice(AXES.length).map(({ name, label, title }) => [name, label, title])).toEqual([
    ["knobs.nodes", "nodes", "nodes"],
    ["knobs.memory", "memory", "memory: Of <what>."],
  ]);
  const one = withKnobs(0, { nodes: 4, memory: "b" });
  expect(["knobs.nodes", "knobs.memory", "memory", "tp"].map((name) => valueOf(one, name))).toEqual([4, "b", 2 ** 30, 1]);
  expect([labelOf("knobs.memory"), labelOf("micro_batch_size"), labelOf("objective")]).toEqual(["memory", "micro-batch", "objective"]);
  expect(named([one, withKnobs(1, { nodes: 2, memory: "b" })], dimensions)).toEqual(["knobs.nodes"]);
});

test("levels of a knob are in the order of its values, numbers by size, and inactive first", () => {
  const values = [{ n: 16, w: "auto" }, {}, { n: 4, w: 8 }, { n: 8, w: 2 }].map((knobs, at) => withKnobs(at, knobs as Plan["knobs"]));
  expect(levelsOf(values, knobDimension("n", [16, 4, 8]))).toEqual(["–", 4, 8, 16]);
  expect(levelsOf(values, knobDimension("w", ["auto", 2, 8]))).toEqual(["–", "auto", 2, 8]);
  expect(levelsOf([withKnobs(0, { c: true }), withKnobs(1, { c: false })], knobDimension("c", [false, true]))).toEqual([false, true]);
});

test("a knob that has one value wherever it is active follows from its condition", () => {
  expect(named([withKnobs(0, { n: 4 }), withKnobs(1)], [knobDimension("n", [4, 8])])).toEqual([]);
});

test("knobs are filtered by words and by exact numbers, inactive ones by their own word", () => {
  const trials = [withKnobs(0, { fp8: "a<b", size: 4194304 }), withKnobs(1, { fp8: true, size: 8388608 }), withKnobs(2)];
  const kept = (query: string) => trials.filter((one) => passes(one, readFilters(new URLSearchParams(query)))).map(({ number }) => number);
  expect(kept("knobs.fp8=a%3Cb")).toEqual([0]);
  expect(kept("knobs.fp8=true&knobs.fp8=–")).toEqual([1, 2]);
  const size = { kind: "range", low: 4194304, high: 4194304 } as const;
  expect(kept(`knobs.size=${written("knobs.size", size)}`)).toEqual([0]);
});

test("a table sorted by a knob has numbers before words and inactive ones last", () => {
  const trials = [withKnobs(0), withKnobs(1, { w: "auto" }), withKnobs(2, { w: 8 }), withKnobs(3, { w: 2 })];
  const order = (descending: boolean) => inOrder(trials, { key: "knobs.w", descending }).map(({ number }) => number);
  expect([order(false), order(true)]).toEqual([[3, 2, 1, 0], [1, 2, 3, 0]]);
});
