/** Which of two trials is better by the campaign's objective. */
import type { CampaignView, TrialBrief } from "../../api/types";

/** label: for axes and columns. unit: of the objective's values, as the service names it. samples: they are counted in
 * place of tokens, since the spec names no model. */
export interface Goal {
  readonly label: string;
  readonly unit: string;
  readonly smallerIsBetter: boolean;
  readonly samples?: boolean;
}

const LABELS: Readonly<Record<string, string>> = {
  tokens_per_s_per_device: "tokens/s per device",
  step_time: "step time",
  tflops_per_device: "TFLOP/s per device",
  mfu: "MFU",
};

/** The service says the unit with the first value; before, there is nothing to show in it. */
export function goalOf({ spec, summary }: CampaignView): Goal {
  const { unit = "", smaller_is_better: smallerIsBetter = false } = (summary.fastest_once ?? summary.baseline)?.objective ?? {};
  const samples = (spec.model as unknown) === "unknown";
  return { label: worded({ samples }, LABELS[spec.objective] ?? spec.objective), samples, unit, smallerIsBetter };
}

/** A text about tokens, as the campaign has them. */
export function worded({ samples }: Pick<Goal, "samples">, text: string): string {
  return samples ? text.replace("tokens", "samples").replace("Tokens", "Samples") : text;
}

export function isBetter(goal: Goal, value: number, than: number): boolean {
  return goal.smallerIsBetter ? value < than : value > than;
}

/** True for a second run of a plan. What is fastest once is so by first runs. */
export function isAgain({ origin }: Pick<TrialBrief, "origin">): boolean {
  return origin === "confirmation";
}

export const NOT_CONFIRMED = "first run, not confirmed";

/** 0 for the worst to 1 for the best of the values between the ends. */
export function merit(goal: Goal, value: number, [low, high]: readonly [number, number]): number {
  if (low === high) return 1;
  const share = (value - low) / (high - low);
  return Math.min(1, Math.max(0, goal.smallerIsBetter ? 1 - share : share));
}
