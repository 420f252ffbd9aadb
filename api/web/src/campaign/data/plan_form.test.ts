import { expect, test } from "vitest";
import { planOf, typedOf } from "./plan_form";
import { PLAN } from "./trial.fixture";
import { AXES } from "./values";

test("a plan that names nothing is one with every axis at its default, and comes back whole", () => {
  const typed = typedOf(AXES, undefined);
  expect(planOf(AXES, typed)).toEqual({ ...PLAN, dp: 1, knobs: {} });
  expect(planOf(AXES, typedOf(AXES, { ...PLAN, zero_stage: 1, zero_group: 8, etp: 2 }))).toMatchObject({ dp: 8, zero_stage: 1, zero_group: 8, etp: 2 });
});
