import { expect, test } from "vitest";
import type { Analysis } from "../../api/types";
import { AXES, knobDimension } from "../data/values";
import { byImportance, changeWords, titleOf } from "./names";

const axis = (name: string) => AXES.find((one) => one.name === name)!;

test("a change is in words, of an axis and of a knob", () => {
  expect(changeWords({ knob: "pp", before: 64, after: 32 })).toBe("pipeline 64 → 32");
  expect(changeWords({ knob: "knobs.fp8", before: null, after: true })).toBe("fp8 inactive → true");
  expect(changeWords({ knob: "fp8", before: "–", after: false })).toBe("fp8 inactive → false");
});

test("those that decide most come first, and of others the order stays", () => {
  const dimensions = [axis("tp"), axis("pp"), knobDimension("fp8", [true, false], "8 bits"), axis("recompute")];
  const importances = [{ knob: "fp8", share: 0.7 }, { knob: "pp", share: 0.3 }];
  const sorted = byImportance(dimensions, { sensitivity: { importances } } as unknown as Analysis);
  expect(sorted.map(({ label }) => label)).toEqual(["fp8", "pipeline", "tensor", "recompute"]);
  expect(byImportance(dimensions, undefined)).toEqual(dimensions);
  expect(titleOf(dimensions, "fp8")).toBe("fp8: 8 bits");
});
