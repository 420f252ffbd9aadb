/** The documents of REST /v1, field by field as api/*views.py has them. Times are RFC 3339; null is not known. */
export type * from "./types_reading";
export type * from "./types_house";

export type Scope = "read" | "launch" | "command" | "admin";

export interface Whoami {
  name: string;
  scopes: Scope[];
  expires_at: string | null;
  loopback: boolean;
  quotas: { campaigns: number | null; trials: number | null; device_hours: number | null };
  used: { campaigns: number; trials: number; device_hours: number };
}

export interface Estimate {
  value: number;
  low: number;
  high: number;
}

export interface Plan {
  tp: number;
  pp: number;
  dp: number;
  cp: number;
  ep: number;
  vpp: number;
  micro_batch_size: number;
  grad_accum_steps: number;
  zero_stage: number;
  recompute: string;
  schedule: string;
  sequence_parallel: boolean;
  recompute_interval: number;
  context: string;
}

export type Dimension = keyof Plan;
export type CampaignState = "running" | "paused" | "cancelling" | "completed" | "cancelled" | "failed";
export type TrialState = "planned" | "submitted" | "running" | "done";
export type Verdict = "ok" | "oom" | "crashed" | "timed_out" | "pruned" | "cancelled" | "lost" | "illegal";
export type Origin = "baseline" | "search" | "confirmation";
export type Cause =
  | "oom"
  | "illegal_setting"
  | "hang"
  | "communication"
  | "node_fault"
  | "preemption"
  | "time_limit"
  | "user_bug"
  | "crash";

export interface ObjectiveView extends Estimate {
  name: string;
  unit: string;
  smaller_is_better: boolean;
}

export interface Budget {
  trials: number | null;
  wall_time_s: number | null;
  device_hours: number | null;
}

export interface CampaignBest {
  trial: number;
  plan_key: string;
  objective: ObjectiveView;
  step_time_s: number;
  gain_over_baseline: Estimate | null;
}

export interface CampaignSummary {
  done: number;
  /** Of these, those that measured a setting once more: the budget is of the others. */
  confirmations: number;
  in_flight: number;
  failed: number;
  failures: Partial<Record<Cause, number>>;
  budget: Budget;
  device_hours: number;
  best: CampaignBest | null;
  baseline: { trial: number; objective: ObjectiveView; step_time_s: number } | null;
}

export interface Lesson {
  campaign_id: string;
  trials: number;
  weight: number;
}

/** What the dashboard reads of a spec; a spec holds more. */
export interface SpecView {
  name: string;
  model: { name?: string; seq_len?: number; [key: string]: unknown };
  cluster: { name?: string; device?: { name?: string; memory_bytes?: number; [key: string]: unknown }; [key: string]: unknown };
  global_batch_size: number | string;
  workload: { kind: string; [option: string]: unknown };
  search: { kind: string; [option: string]: unknown };
  runner: { kind: string; [option: string]: unknown };
  objective: string;
  budget: Budget;
  baseline?: Plan;
  parallel: number;
  pareto: boolean;
  [key: string]: unknown;
}

export interface CampaignView {
  id: string;
  name: string;
  state: CampaignState;
  reason: string;
  created_at: string;
  updated_at: string;
  elapsed_s: number;
  combinations: number;
  legal: number;
  /** How many trials, by verdict, or by state while they have none. */
  trials: Record<string, number>;
  trouble: string;
  search_ended: string;
  chance_left: number | null;
  lessons: Lesson[];
  spec: SpecView;
  owner: string;
  nodes: number;
  devices: number;
  model: string;
  cluster: string;
  summary: CampaignSummary;
}

export interface CampaignPage {
  campaigns: CampaignView[];
  next_page_token: string | null;
}

/** What a search expected of a plan when it chose it. gain: a share of the best speed before. */
export interface Expectation {
  step_time_s: number;
  step_time_low_s: number;
  step_time_high_s: number;
  p_fits: number;
  gain: number;
  peak_bytes: number;
}

export interface TrialBrief {
  number: number;
  origin: Origin;
  state: TrialState;
  verdict: Verdict | null;
  failure: Cause | null;
  reason: string;
  plan: Plan;
  plan_key: string;
  step_time_s: number | null;
  step_time_low_s: number | null;
  step_time_high_s: number | null;
  objective: Estimate | null;
  tokens_per_s_per_device: number | null;
  peak_memory_bytes: number | null;
  headroom_bytes: number | null;
  expectation: Expectation | null;
  device_seconds: number;
  attempts: number;
  nodes: string[];
  planned_at: string;
  submitted_at: string | null;
  started_at: string | null;
  finished_at: string | null;
}

export interface TrialBriefPage {
  trials: TrialBrief[];
  next_page_token: string | null;
}

export interface Straggler {
  rank: number;
  ratio: number;
}

/** One value per rank; the parts of a rank add up to step_time_s. */
export interface ProfileView {
  step_time_s: number;
  parts_s: Record<string, number>[];
  waiting_s: Record<string, number>[];
  own_time_s: number[];
  stages: number[];
  straggler: Straggler | null;
}

export interface MeasurementView {
  step_times_s: number[];
  warmup_times_s: number[];
  step_time_s: number;
  step_time_low_s: number;
  step_time_high_s: number;
  tokens_per_s: number;
  tokens_per_s_per_device: number;
  flops_per_s_per_device: number | null;
  mfu: number | null;
  peak_memory_bytes: number[];
  peak_held_bytes: number[];
  first_losses: number[];
  profile: ProfileView | null;
}

export interface PartialView {
  steps: number;
  step_times_s: number[];
  warmup_times_s: number[];
  step_time_s: number;
  peak_memory_bytes: number[];
  peak_held_bytes: number[];
  first_losses: (number | null)[];
}

export interface AttemptView {
  number: number;
  job_name: string;
  job_id: string | null;
  state: TrialState;
  verdict: Verdict | null;
  failure: Cause | null;
  reason: string;
  failed_rank: number | null;
  phase: string | null;
  log_tail: string;
  partial: PartialView | null;
  avoid: string[];
  nodes: string[];
  failed_nodes: string[];
  planned_at: string;
  submitted_at: string | null;
  started_at: string | null;
  finished_at: string | null;
}

export interface TrialView {
  number: number;
  origin: Origin;
  state: TrialState;
  verdict: Verdict | null;
  plan: Plan;
  plan_key: string;
  expectation: Expectation | null;
  measurement: MeasurementView | null;
  partial: PartialView | null;
  attempts: AttemptView[];
}

export interface LogFiles {
  files: { name: string; bytes: number; modified_at: string }[];
}

export interface JobView {
  name: string;
  command: string[];
  directory: string;
  script: string | null;
  files: Record<string, string>;
}

export interface ExportView {
  format: string;
  trial: number;
  files: Record<string, string>;
  command: string | null;
}

/** Of one campaign: trial.* has data.number. */
export interface EventView {
  id: number;
  campaign_id: string;
  at: string;
  kind: string;
  data: { number?: number; [key: string]: unknown };
}
