/** Trials for tests: a measured one by default. */
import type { Plan, TrialBrief } from "../../api/types";
import { DEFAULTS, MEASURED } from "./values";

export const PLAN = { ...DEFAULTS, dp: 8, knobs: {} } as unknown as Plan;

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
