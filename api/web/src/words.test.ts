import { expect, test } from "vitest";
import { changeWords, failureWords, trialsOf, trialWord, waitWords } from "./words";

test("failures are told by kind, the most frequent first, and none that did not happen", () => {
  expect(failureWords({ hang: 1, oom: 12, crash: 0 })).toBe("12 out of memory, 1 hang");
  expect(failureWords({})).toBe("");
});

test("what is beyond the budget is a second run", () => {
  expect([trialsOf(4, 0, 6), trialsOf(6, 0, 6), trialsOf(8, 3, 6)]).toEqual(["4 of 6 trials", "6 of 6 trials", "5 of 6 trials, 3 second runs"]);
});

test("a trial without a verdict says how far it is", () => {
  expect(trialWord({ state: "done", verdict: "timed_out" })).toEqual({ word: "timed out", tone: "failed" });
  expect(trialWord({ state: "submitted", verdict: null })).toEqual({ word: "queued", tone: "plain" });
  expect(trialWord({ state: "running", verdict: null })).toEqual({ word: "running", tone: "running" });
});

test("a job that waits says since when and why, and a refused one why", () => {
  expect(waitWords({ submitted_at: "2026-11-24T12:03:00", wait: "JobHeldAdmin" })).toBe("queued since 2026-11-24 12:03:00: JobHeldAdmin");
  expect(waitWords({ submitted_at: "2026-11-24T12:03:00", wait: "" })).toBe("queued since 2026-11-24 12:03:00");
  expect(waitWords({ submitted_at: null, wait: "the runner refuses jobs" })).toBe("the runner refuses jobs");
});

test("a change is told by the name of its axis", () => {
  expect(changeWords({ knob: "pp", before: 64, after: 32 })).toBe("pipeline 64 → 32");
  expect(changeWords({ knob: "fused", before: null, after: true })).toBe("fused inactive → true");
});
