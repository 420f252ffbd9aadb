/** States, verdicts and causes in words, and the status colour that goes with each. The word always stands beside it. */
import type { AttemptView, CampaignState, Cause, Change, TrialBrief, Verdict } from "./api/types";
import { INACTIVE, labelOf, outcomeOf } from "./campaign/data/values";
import { clock, count, counted } from "./format";

export type Tone = "ok" | "oom" | "failed" | "pruned" | "running" | "plain";

export const CAMPAIGN_TONES: Record<CampaignState, Tone> = {
  running: "running",
  paused: "pruned",
  cancelling: "pruned",
  completed: "ok",
  cancelled: "pruned",
  failed: "oom",
};

export const VERDICT_TONES: Record<Verdict, Tone> = {
  ok: "ok",
  oom: "oom",
  crashed: "failed",
  timed_out: "failed",
  pruned: "pruned",
  cancelled: "pruned",
  lost: "failed",
  illegal: "failed",
};

export const CAUSE_WORDS: Record<Cause, string> = {
  oom: "out of memory",
  illegal_setting: "illegal setting",
  hang: "hang",
  communication: "communication",
  node_fault: "node fault",
  storage: "storage",
  preemption: "preempted",
  other_hardware: "other hardware",
  time_limit: "time limit",
  queue_limit: "queue limit",
  user_bug: "bug in the job",
  crash: "crash",
};

const WORDS: Readonly<Record<string, string>> = { ...CAUSE_WORDS, timed_out: "timed out", submitted: "queued", enqueued: "by hand", [INACTIVE]: "inactive" };

/** Of a verdict, state, cause or origin; what is none of them as it is. */
export function wordOf(word: string): string {
  return WORDS[word] ?? word;
}

export function toneOf(outcome: string): Tone {
  return (VERDICT_TONES as Readonly<Record<string, Tone>>)[outcome] ?? (outcome === "running" ? "running" : "plain");
}

/** Why a job that has not started waits, and since when; empty for one that was not sent and not refused. */
export function waitWords({ submitted_at, wait }: Pick<TrialBrief, "submitted_at" | "wait">): string {
  if (submitted_at === null) return wait;
  return `queued since ${clock(submitted_at)}${wait && `: ${wait}`}`;
}

/** Of a failure: "rank 3 in the forward pass". */
export function whereWords({ failed_rank, phase }: Pick<AttemptView, "failed_rank" | "phase">): string {
  return [failed_rank !== null && `rank ${failed_rank}`, phase && `in ${phase}`].filter(Boolean).join(" ");
}

/** How a trial ended, or how far it is. */
export function trialWord(trial: Pick<TrialBrief, "state" | "verdict">): { word: string; tone: Tone } {
  const outcome = outcomeOf(trial);
  return { word: wordOf(outcome), tone: toneOf(outcome) };
}

/** "pipeline 64 → 32". */
export function changeWords({ knob, before, after }: Change): string {
  return `${labelOf(knob)} ${before ?? "inactive"} → ${after ?? "inactive"}`;
}

/** Failures by kind, the most frequent first: "3 out of memory, 1 hang". */
export function failureWords(failures: Partial<Record<Cause, number>>): string {
  const counts = (Object.entries(failures) as [Cause, number][]).filter(([, times]) => times > 0).sort(([, a], [, b]) => b - a);
  return counts.map(([cause, times]) => `${count(times)} ${wordOf(cause)}`).join(", ");
}

/** Trials done of the budget's. Second runs are beyond it. */
export function trialsOf(done: number, again: number, budget: number): string {
  return `${count(done - again)} of ${count(budget)} trials${again > 0 ? `, ${counted(again, "second run")}` : ""}`;
}
