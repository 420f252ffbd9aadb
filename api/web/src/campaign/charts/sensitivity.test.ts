import { expect, test } from "vitest";
import type { Analysis } from "../../api/types";
import { AXES, knobDimension } from "../data/values";
import { byImportance } from "./sensitivity";

const axis = (name: string) => AXES.find((one) => one.name === name)!;

test("those that decide most come first, and of others the order stays", () => {
  const dimensions = [axis("tp"), axis("pp"), knobDimension("fp8", [true, false], "8 bits"), axis("recompute")];
  const importances = [{ knob: "fp8", share: 0.7 }, { knob: "pp", share: 0.3 }];
  const sorted = byImportance(dimensions, { sensitivity: { importances } } as unknown as Analysis);
  expect(sorted.map(({ label }) => label)).toEqual(["fp8", "pipeline", "tensor", "recompute"]);
  expect(byImportance(dimensions, undefined)).toEqual(dimensions);
});
