/** What the trials of a campaign teach: the best, the analysis, and campaigns beside each other. */
import type { CampaignState, Estimate, ObjectiveView, Origin, Plan, Straggler, Verdict } from "./types";
import type { BasisView, Knob } from "./types_house";

export interface PartTime {
  part: string;
  time_s: number;
  share: number;
}

export interface RankedView {
  rank: number;
  trial: number;
  origin: Origin;
  plan: Plan;
  plan_key: string;
  objective: ObjectiveView;
  tokens_per_s: Estimate;
  step_time_s: number;
  timed_steps: number;
  peak_memory_bytes: number | null;
  headroom_bytes: number | null;
  tflops_per_device: number;
  mfu: number | null;
  time_by_part: PartTime[];
  straggler: Straggler | null;
  first_losses: number[];
  gain_over_baseline: Estimate | null;
  trains_as_baseline: true | string | null;
  measured_again: { trial: number; verdict: Verdict; first: number; change: number | null } | null;
}

export interface BestView {
  campaign: string;
  recommendation: { reason: string; better_than_baseline: boolean; setting: RankedView | null };
  best: RankedView[];
  front: RankedView[];
}

export interface EffectView {
  knob: string;
  before: Knob;
  after: Knob;
  followers: { knob: string; before: Knob; after: Knob }[];
  gain: Estimate;
  evidence: "measured" | "predicted";
  pairs: number;
  p_fits: number | null;
  ended: Verdict | null;
  words: string;
}

export interface WindowView {
  first: number;
  last: number;
  trials: number;
  failed: number;
  rate: number;
  verdicts: Partial<Record<Verdict, number>>;
}

export interface AnalysisView {
  campaign: string;
  simulated: boolean;
  trials: number;
  sensitivity: { plans: number; importances: { knob: string; share: number }[]; nothing: string; method: string };
  effects: EffectView[];
  failures: { all: WindowView | null; so_far: { trial: number; failed: number; rate: number }[]; windows: WindowView[] };
  hindsight: {
    forecasts: { trial: number; plan_key: string; expected_s: Estimate; measured_s: number; ratio: number; within: boolean }[];
    steps: { trials: number; within: number; median_error: number; spearman: number | null } | null;
    fits: { trials: number; fitted: number; expected: number; brier: number; brier_of_share: number } | null;
  };
  winners: {
    rank: number;
    trial: number;
    plan: Plan;
    plan_key: string;
    step_s: number;
    parts: PartTime[];
    evidence: "measured" | "predicted" | null;
    rival: string | null;
    rival_trial: number | null;
    gain: number | null;
    savings_s: Record<string, number>;
    words: string;
  }[];
  basis: BasisView | null;
  unpredicted: string;
}

export interface ComparedCampaign {
  id: string;
  name: string;
  state: CampaignState;
  nodes: number;
  devices: number;
  model: string;
  cluster: string;
  best: { trial: number; plan_key: string; tokens_per_s: Estimate; tokens_per_s_per_device: Estimate } | null;
  efficiency: Estimate | null;
  projected: { tokens_per_s: Estimate; efficiency: Estimate } | null;
}

export interface ComparisonView {
  objective: string;
  campaigns: ComparedCampaign[];
  notes: string[];
}
