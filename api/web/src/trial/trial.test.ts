import { expect, test } from "vitest";
import { quoted } from "./job";
import { compareLosses, widest } from "./loss_differences";

test("losses are compared step by step, and what was not finite compares with nothing", () => {
  const steps = compareLosses([10, null, 9.9, 8], [10, 9, 9]);
  expect(steps.map((one) => one.difference)).toEqual([0, null, 9.9 / 9 - 1, null]);
  expect(widest(steps)?.step).toBe(3);
  expect(widest(compareLosses([null], [1]))).toBeNull();
});

test("a command can be pasted into a shell", () => {
  expect(["--tp=4", "a b", "it's", ""].map(quoted)).toEqual(["--tp=4", "'a b'", "'it'\\''s'", "''"]);
});
