import { expect, test } from "vitest";
import { levelsOf, varying } from "./values";
import { trial } from "./trial.fixture";

test("a dimension that follows from the others is no axis", () => {
  const trials = [trial(0, { tp: 1, dp: 8, grad_accum_steps: 1 }), trial(1, { tp: 2, dp: 4, grad_accum_steps: 2 })];
  expect(varying(trials)).toEqual(["tp"]);
});

test("dp is an axis where the trials fill different devices", () => {
  expect(varying([trial(0, { dp: 8 }), trial(1, { dp: 4 })])).toEqual(["dp"]);
});

test("levels are in order of size, and words in the order of their kind", () => {
  const trials = [8, 16, 2].map((tp, at) => trial(at, { tp, recompute: (["full", "none", "selective"] as const)[at]! }));
  expect(levelsOf(trials, "tp")).toEqual([2, 8, 16]);
  expect(levelsOf(trials, "recompute")).toEqual(["none", "selective", "full"]);
});
