/** What a plan reached: over all its runs, as the service ranks it, where it ran again; else by its one run. Tables,
 * comparison and the page of a trial all ask here, so that they agree with the recommendation. */
import type { Change, Estimate, Plan, TrialBrief } from "../../api/types";
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

export function figuresOf({ setting, ...run }: Run): Figures {
  const { objective, step_time_s: stepTime_s } = setting ?? run;
  const interval = setting?.gain_over_baseline ?? null;
  const gain = setting ? (interval?.value ?? null) : run.gain_over_baseline;
  return { objective, stepTime_s, gain, interval, rounds: setting?.gain_rounds ?? 0, runs: setting?.runs ?? 0, failedAgain: setting?.failed_again ?? false };
}

/** The differences of a plan from another one, without what follows from the rest, as the service has them
 * (`search_spaces/changes.py`). */
export function changesOf(plan: Plan, baseline: Plan): Change[] {
  const valuesOf = (one: Plan) => ({ ...one, ...one.knobs }) as unknown as Readonly<Record<string, Change["before"]>>;
  const [own, base] = [valuesOf(plan), valuesOf(baseline)];
  const batch = (one: Plan) => one.dp * one.micro_batch_size * one.grad_accum_steps;
  const follows = ["dp", ...(batch(plan) === batch(baseline) ? ["grad_accum_steps"] : [])];
  const names = [...AXES.map(({ name }) => name), ...Object.keys({ ...baseline.knobs, ...plan.knobs }).sort()];
  return names
    .map((knob) => ({ knob, before: base[knob] ?? null, after: own[knob] ?? null }))
    .filter(({ knob, before, after }) => before !== after && !follows.includes(knob));
}
