import { changesOf } from "../campaign/data/figures";
import { expect, test } from "vitest";
import type { Plan } from "../api/types";
import { PLAN } from "../campaign/data/trial.fixture";
import { quoted } from "./job";
import { differencesOf, widest } from "./losses";

test("losses are compared step by step, and what was not finite compares with nothing", () => {
  const differences = differencesOf([10, null, 9.9, 8], [10, 9, 9]);
  expect(differences).toEqual([0, null, 9.9 / 9 - 1, null]);
  expect(widest(differences)).toBe(2);
  expect(widest([...differences, -0.5])).toBe(4);
  expect(widest(differencesOf([null], [1]))).toBeNull();
});

test("a command can be pasted into a shell", () => {
  expect(["--tp=4", "a b", "it's", ""].map(quoted)).toEqual(["--tp=4", "'a b'", "'it'\\''s'", "''"]);
});

test("a plan's changes leave out what follows from the rest, as the service has them", () => {
  const baseline: Plan = { ...PLAN, tp: 8, dp: 2, grad_accum_steps: 4, knobs: { fp8: "off", cap: 2 } };
  const plan: Plan = { ...baseline, tp: 4, dp: 4, grad_accum_steps: 2, knobs: { fp8: "on" } };
  expect(changesOf(plan, baseline)).toEqual([
    { knob: "tp", before: 8, after: 4 },
    { knob: "cap", before: 2, after: null },
    { knob: "fp8", before: "off", after: "on" },
  ]);
  expect(changesOf({ ...plan, grad_accum_steps: 8 }, baseline).map(({ knob }) => knob)).toContain("grad_accum_steps");
  expect(changesOf(baseline, baseline)).toEqual([]);
});
