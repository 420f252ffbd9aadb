import { expect, test } from "vitest";
import type { Goal } from "./goal";
import { quantitiesOf, quantityLabel, quantityWords } from "./quantities";
import { trial } from "./trial.fixture";
import { AXES, knobDimension, MEASURED, valueOf } from "./values";

const SPEED: Goal = { label: "tokens/s per device", unit: "tokens/s/device", smallerIsBetter: false };

test("an axis of a chart is the objective, any number of a trial, or what the plans differ in; the objective comes once", () => {
  const names = quantitiesOf(SPEED, [AXES[0]!, knobDimension("size", [1, 2])]).map(({ name }) => name);
  const measured = MEASURED.map(({ name }) => name);
  expect(measured.slice(0, 4)).toEqual(["memory", "step_time", "tokens", "headroom"]);
  expect(names).toEqual(["objective", ...measured.filter((name) => name !== "tokens"), "predicted_step_time", "predicted_memory", "device_hours", "number", "tp", "knobs.size"]);
});

test("every one of them has a value of a measured trial, a name and words with a unit", () => {
  const measured = trial(3, {}, { expectation: { gain: 0, p_fits: 1, peak_bytes: 2 ** 31, step_time_s: 2, step_time_low_s: 1, step_time_high_s: 3 } });
  for (const { name, label } of quantitiesOf(SPEED, [])) {
    expect(typeof valueOf(measured, name), name).toBe("number");
    expect(quantityLabel(name, SPEED)).toBe(label);
  }
  expect([quantityWords("predicted_memory", 2 ** 31, SPEED), quantityWords("step_time", 0.25, SPEED), quantityWords("objective", 100, SPEED)]).toEqual(["2 GiB", "250 ms", "100"]);
});

test("without a model samples are counted in place of tokens", () => {
  const goal: Goal = { ...SPEED, label: "samples/s per device", samples: true };
  expect(quantityLabel("tokens", goal)).toBe("samples/s per device");
  expect(quantitiesOf(goal, []).map(({ label }) => label).filter((label) => /token|sample/.test(label))).toEqual(["samples/s per device"]);
});
