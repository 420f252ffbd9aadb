import { expect, test } from "vitest";
import { isEmpty, passes, readFilters, withWord, written } from "./filters";
import { reaching, trial } from "./trial.fixture";

test("a filter in the address is read as it was written", () => {
  const query = new URLSearchParams("tp=2..4&recompute=none&recompute=full&objective=1.5..2e3&text=gpu-1&sort=-number&lines=best");
  const filters = readFilters(query);
  expect(filters).toEqual({
    text: "gpu-1",
    on: {
      tp: { kind: "range", low: 2, high: 4 },
      recompute: { kind: "words", words: ["none", "full"] },
      objective: { kind: "range", low: 1.5, high: 2000 },
    },
  });
  expect(written("tp", filters.on["tp"]!)).toEqual(["2..4"]);
  expect(written("recompute", filters.on["recompute"]!)).toEqual(["none", "full"]);
});

test("no filters let every trial pass", () => {
  expect(isEmpty(readFilters(new URLSearchParams("sort=number")))).toBe(true);
  expect(passes(trial(0), { text: "", on: {} })).toBe(true);
});

test("a range holds its ends, and a trial without the value does not pass it", () => {
  const filters = readFilters(new URLSearchParams("objective=10..20"));
  expect([9.9, 10, 20, 20.1].map((value) => passes(reaching(0, value), filters))).toEqual([false, true, true, false]);
  expect(passes(reaching(0, null), filters)).toBe(false);
});

test("a trial has to meet every condition, and the outcome is its state while it runs", () => {
  const filters = readFilters(new URLSearchParams("verdict=running&tp=2..2"));
  const running = trial(0, { tp: 2 }, { state: "running", verdict: null });
  expect(passes(running, filters)).toBe(true);
  expect(passes(trial(0, { tp: 2 }), filters)).toBe(false);
  expect(passes(trial(0, { tp: 2 }), filters, "verdict")).toBe(true);
});

test("every word of a text has to be found, in any field and in any case", () => {
  const failed = trial(7, {}, { reason: "rank 3 hung", nodes: ["gpu-12"] });
  const byText = (text: string) => passes(failed, { text, on: {} });
  expect([byText("HUNG gpu-12"), byText("#7"), byText("hung gpu-13")]).toEqual([true, true, false]);
});

test("the last word that is taken out takes the condition with it", () => {
  const one = withWord(undefined, "oom");
  expect(withWord(one!, "ok")).toEqual({ kind: "words", words: ["oom", "ok"] });
  expect(withWord(one!, "oom")).toBeNull();
});

test("a text finds what the page says of an axis, and nothing that merely holds its words", () => {
  const trials = [trial(1, { tp: 4, zero_stage: 1 }), trial(2, { tp: 8, zero_stage: 0, recompute: "full" })];
  const found = (text: string) => trials.filter((one) => passes(one, { text, on: {} })).map(({ number }) => number);
  expect([found("tensor 4"), found("ZeRO 1"), found("recompute full"), found("tensor 2"), found("tp4"), found("#2")]).toEqual([[1], [1], [2], [], [1], [2]]);
});
