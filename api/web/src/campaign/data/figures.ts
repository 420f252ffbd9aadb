/** What a plan reached: over all its runs, as the service ranks it, where it ran again; else by its one run. Tables,
 * comparison and the page of a trial all ask here, so that they agree with the recommendation. */
import type { Change, Estimate, Plan, SettingView, TrialBrief } from "../../api/types";
import { AXES } from "./values";

/** gain: over the baseline, by `rounds` of second runs beside the baseline's; by first runs where that is 0, and then
 * without an interval. runs: second runs that were measured. failedAgain: one of them failed. */
export interface Figures {
  readonly objective: Estimate | null;
  readonly stepTime_s: number | null;
  readonly gain: number | null;
  readonly interval: Estimate | null;
  readonly rounds: number;
  readonly runs: number;
  readonly failedAgain: boolean;
}

type Run = Pick<TrialBrief, "setting" | "objective" | "step_time_s" | "gain_over_baseline">;

export function figuresOf({ setting, objective, step_time_s, gain_over_baseline }: Run): Figures {
  if (setting) return ofSetting(setting);
  return { objective, stepTime_s: step_time_s, gain: gain_over_baseline, interval: null, rounds: 0, runs: 0, failedAgain: false };
}

function ofSetting({ objective, step_time_s, gain_over_baseline: gain, gain_rounds, runs, failed_again }: SettingView): Figures {
  return { objective, stepTime_s: step_time_s, gain: gain?.value ?? null, interval: gain, rounds: gain_rounds, runs, failedAgain: failed_again };
}

/** The differences of a plan from another one, without what follows from the rest, as the service has them
 * (`search_spaces/changes.py`). */
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
