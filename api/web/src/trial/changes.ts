/** The differences of a plan from another one, without what follows from the rest, as the service has them
 * (`search_spaces/changes.py`). */
import type { Change, Plan } from "../api/types";
import { AXES } from "../campaign/data/values";

export function changesOf(plan: Plan, baseline: Plan): Change[] {
  const [own, base] = [plan, baseline].map((one) => ({ ...one.knobs, ...axesOf(one) }));
  const batch = (one: Plan) => one.dp * one.micro_batch_size * one.grad_accum_steps;
  const follows = ["dp", ...(batch(plan) === batch(baseline) ? ["grad_accum_steps"] : [])];
  const names = [...AXES.map(({ name }) => name), ...Object.keys({ ...baseline.knobs, ...plan.knobs }).sort()];
  return names
    .map((knob) => ({ knob, before: base![knob] ?? null, after: own![knob] ?? null }))
    .filter(({ knob, before, after }) => before !== after && !follows.includes(knob));
}

function axesOf(plan: Plan): Record<string, Change["before"]> {
  return Object.fromEntries(AXES.map(({ name }) => [name, plan[name as keyof Plan] as Change["before"]]));
}
