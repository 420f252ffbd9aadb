/** Trials for tests: a measured one by default. */
import type { Plan, TrialBrief } from "../../api/types";
import { MEASURED } from "./values";

export const PLAN: Plan = {
  tp: 1,
  pp: 1,
  dp: 8,
  cp: 1,
  ep: 1,
  etp: 0,
  vpp: 1,
  first_stage_less_layers: 0,
  last_stage_less_layers: 0,
  micro_batch_size: 1,
  grad_accum_steps: 1,
  zero_stage: 0,
  zero_group: 0,
  recompute: "none",
  schedule: "1f1b",
  sequence_parallel: true,
  recompute_interval: 1,
  context: "all_gather",
  knobs: {},
};

const NUMBERS = Object.fromEntries(MEASURED.map(({ field }) => [field, 1]));

export function trial(number: number, plan: Partial<Plan> = {}, more: Partial<TrialBrief> = {}): TrialBrief {
  return {
    number,
    origin: "search",
    state: "done",
    verdict: "ok",
    failure: null,
    reason: "",
    plan: { ...PLAN, ...plan },
    plan_key: `tp${plan.tp ?? 1} pp${plan.pp ?? 1}`,
    ...NUMBERS,
    step_time_s: 1,
    step_time_low_s: 0.9,
    step_time_high_s: 1.1,
    objective: { value: 100, low: 90, high: 110 },
    round: 0,
    gain_over_baseline: null,
    tokens_per_s_per_device: 100,
    peak_memory_bytes: 2 ** 30,
    headroom_bytes: 2 ** 30,
    expectation: null,
    device_seconds: 3600,
    attempts: 1,
    nodes: ["n1"],
    planned_at: "2026-01-01T00:00:00Z",
    wait: "",
    submitted_at: null,
    started_at: null,
    finished_at: `2026-01-01T00:00:${String(number).padStart(2, "0")}Z`,
    ...more,
  } as TrialBrief;
}

export function reaching(number: number, value: number | null, more: Partial<TrialBrief> = {}): TrialBrief {
  const objective = value === null ? null : { value, low: value * 0.9, high: value * 1.1 };
  return trial(number, {}, { objective, verdict: value === null ? "oom" : "ok", peak_memory_bytes: value === null ? null : 2 ** 30, ...more });
}
