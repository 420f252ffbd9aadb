import { expect, test } from "vitest";
import { type Axis, bandMiddle, BOTTOM, conditionOf, jitter, levelAxis, linesOf, nearest, positionOn, RAIL, stretches, TOP } from "./parallel";
import { held, inLines, walk } from "./parallel_axis";
import { linear } from "./scales";
import { AXES, knobDimension } from "../data/values";
import { reaching, trial } from "../data/trial.fixture";

const axis = (name: string) => AXES.find((one) => one.name === name)!;
const TRIALS = [1, 2, 4, 8].map((tp, at) => trial(at, { tp, recompute: at < 2 ? "none" : "full" }));
const TP = levelAxis(TRIALS, axis("tp"));
const SPEED: Axis = { name: "objective", levels: [], scale: linear(100, 200, 0, 1) };

test("jitter is the same each time, differs by trial and axis, and stays within the level's band", () => {
  expect(jitter(3, "tp")).toBe(jitter(3, "tp"));
  expect(jitter(3, "tp")).not.toBe(jitter(4, "tp"));
  expect(jitter(3, "tp")).not.toBe(jitter(3, "pp"));
  for (let number = 0; number < 500; number++) {
    const away = positionOn(TP, trial(number, { tp: 4 }))! - bandMiddle(TP, 2);
    expect(Math.abs(away)).toBeLessThan(0.5 / 4);
  }
});

test("trials of one level are spread over its band", () => {
  const places = Array.from({ length: 200 }, (_, number) => positionOn(TP, trial(number, { tp: 1 }))!);
  expect(Math.max(...places) - Math.min(...places)).toBeGreaterThan(0.1);
});

test("a brush over levels becomes a range of their values, so that a later trial is judged too", () => {
  expect(conditionOf(TP, 0.3, 0.7)).toEqual({ kind: "range", low: 2, high: 4 });
  expect(conditionOf(TP, 0.9, 0.3)).toEqual({ kind: "range", low: 2, high: 8 });
});

test("a short brush within a band means its level", () => {
  expect(conditionOf(TP, 0.02, 0.05)).toEqual({ kind: "range", low: 1, high: 1 });
});

test("a brush over words names them", () => {
  expect(conditionOf(levelAxis(TRIALS, axis("recompute")), 0.6, 1)).toEqual({ kind: "words", words: ["full"] });
});

test("a brush over numbers is in their unit, and turned round where less is better", () => {
  expect(conditionOf(SPEED, 0.25, 0.5)).toEqual({ kind: "range", low: 125, high: 150 });
  expect(conditionOf({ ...SPEED, scale: linear(100, 200, 1, 0) }, 0.25, 0.5)).toEqual({ kind: "range", low: 150, high: 175 });
});

test("what is drawn of a condition is what was brushed", () => {
  expect(stretches(SPEED, conditionOf(SPEED, 0.25, 0.5))).toEqual([[0.25, 0.5]]);
  expect(held(TP, { kind: "range", low: 2, high: 4 })).toEqual([1, 2]);
  expect(held(TP, conditionOf(TP, 3 / 4, 1))).toEqual([3, 3]);
  expect(held(SPEED, conditionOf(SPEED, 0.2, 0.5))).toEqual([2, 4]);
  expect(held(TP, { kind: "range", low: 16, high: 32 })).toBeNull();
  expect(stretches(TP, { kind: "range", low: 16, high: 32 })).toEqual([]);
});

test("a trial in which a knob is inactive crosses its axis at the bottom, and not at the rail of those without a result", () => {
  const fp8 = levelAxis(
    [trial(0, { knobs: { fp8: "mxfp8" } }), trial(1), trial(2, { knobs: { fp8: "off" } })],
    knobDimension("fp8", ["off", "tensorwise", "mxfp8"]),
  );
  expect(fp8.levels).toEqual(["–", "off", "mxfp8"]);
  expect(Math.abs(positionOn(fp8, trial(7))! - bandMiddle(fp8, 0))).toBeLessThan(0.5 / 3);
  expect(conditionOf(fp8, 0, 0.6)).toEqual({ kind: "words", words: ["–", "off"] });
});

test("a trial without a result ends at the rail", () => {
  const [measured, failed] = linesOf([reaching(0, 200), reaching(1, null)], [TP, SPEED]);
  expect([measured!.heights[1], failed!.heights[1]]).toEqual([TOP, RAIL]);
  expect(linesOf([reaching(0, 100)], [SPEED])[0]!.heights[0]).toBe(BOTTOM);
});

test("the line nearest to the pointer is found between two axes, and none beyond reach", () => {
  const lines = [[0, 100], [100, 0]].map((heights, number) => ({ trial: trial(number), heights: Float32Array.from(heights) }));
  expect(nearest(lines, [0, 100], 25, 30, 8)?.trial.number).toBe(0);
  expect(nearest(lines, [0, 100], 25, 70, 8)?.trial.number).toBe(1);
  expect(nearest(lines, [0, 100], 25, 50, 8)).toBeNull();
});

test("arrows move what an axis keeps, with Shift they widen it, and Delete clears it", () => {
  const press = (key: string, shiftKey = false) => walk({ key, shiftKey }, 1, 2, 4);
  expect(walk({ key: "ArrowUp", shiftKey: false }, -1, -1, 4)).toEqual([0, 0]);
  expect(press("ArrowUp")).toEqual([3, 3]);
  expect(press("ArrowUp", true)).toEqual([1, 3]);
  expect(press("ArrowDown", true)).toEqual([0, 2]);
  expect(press("Delete")).toBeNull();
  expect(press("a")).toBeUndefined();
});

test("a long name is parted in two lines, at a place where words end", () => {
  expect(inLines("tensor")).toEqual(["tensor"]);
  expect(inLines("accumulation")).toEqual(["accumulation"]);
  expect(inLines("first stage less")).toEqual(["first ", "stage less"]);
  expect(inLines("megatron_overlap_param_gather")).toEqual(["megatron_overlap_", "param_gather"]);
});
