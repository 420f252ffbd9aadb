/** What a plan reached: over all its runs, as the service ranks it, where it ran again; else by its one run. Tables,
 * comparison and the page of a trial all ask here, so that they agree with the recommendation. */
import type { Estimate, SettingView, TrialBrief } from "../../api/types";

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
