import { expect, test } from "vitest";
import type { TrialBrief } from "../../api/types";
import { cellsOf } from "./cells";
import { frontOf } from "./front";
import { type Goal, merit } from "./goal";
import { bestSoFar } from "./progress";
import { inOrder, surprise } from "./rows";
import { ticks } from "../charts/scales";
import { reaching, trial } from "./trial.fixture";
import { AXES, type Dimension } from "./values";
import { settingOf, settingsOf } from "./settings";
import { upsert } from "./upsert";

const [TP, PP] = AXES as [Dimension, Dimension];
const SPEED: Goal = { label: "speed", unit: "tokens/s", smallerIsBetter: false };
const TIME: Goal = { label: "time", unit: "s", smallerIsBetter: true };

function bests(trials: readonly TrialBrief[], goal: Goal, hours = false) {
  return bestSoFar(trials, goal, hours).map(({ best }) => best?.value);
}

test("the best so far never gets worse, whichever way the objective counts", () => {
  const trials = [5, 3, null, 8, 4].map((value, number) => reaching(number, value));
  expect(bests(trials, SPEED)).toEqual([5, 5, 5, 8, 8]);
  expect(bests(trials, TIME)).toEqual([5, 3, 3, 3, 3]);
});

test("the interval of the best so far is that of the trial which reached it", () => {
  expect(bestSoFar([reaching(0, 100), reaching(1, 50)], SPEED, false)[1]!.best).toMatchObject({ low: 90, high: 100 * 1.1 });
});

test("by device-hours, trials count in the order in which they ended, with all that was spent until then", () => {
  const early = reaching(1, 9, { finished_at: "2026-01-01T00:00:00Z" });
  const late = reaching(0, 5, { finished_at: "2026-01-01T01:00:00Z", device_seconds: 7200 });
  const reached = bestSoFar([late, early], SPEED, true);
  expect(reached.map(({ trial, x }) => [trial.number, x])).toEqual([[1, 1], [0, 3]]);
  expect(bests([late, early], SPEED, true)).toEqual([9, 9]);
});

test("a trial in flight is no step of the best so far", () => {
  expect(bestSoFar([trial(0, {}, { verdict: null, state: "running" })], SPEED, false)).toEqual([]);
});

test("failed trials come last upwards and downwards", () => {
  const trials = [null, 2, 9, null, 5].map((value, number) => reaching(number, value));
  const numbers = (descending: boolean) => inOrder(trials, { key: "objective", descending }).map((one) => one.number);
  expect(numbers(true)).toEqual([2, 4, 1, 0, 3]);
  expect(numbers(false)).toEqual([1, 4, 2, 0, 3]);
});

test("sorted by how far off the expected step was, the slowest of the expected come first", () => {
  const expecting = (step_time_s: number | null) => ({ expectation: step_time_s && { step_time_s } }) as Partial<TrialBrief>;
  const trials = [2, 0.5, null, 1].map((expected, number) => trial(number, {}, expecting(expected)));
  expect(inOrder(trials, { key: "expected", descending: true }).map(({ number }) => number)).toEqual([1, 3, 0, 2]);
  expect(trials.map(surprise)).toEqual([-0.5, 1, null, 0]);
});

test("a cell counts what was tried and what ran out of memory, and has the best of the rest", () => {
  const trials = [
    trial(0, { tp: 1, pp: 2 }),
    trial(1, { tp: 1, pp: 2 }, { objective: { value: 300, low: 290, high: 310 } }),
    trial(2, { tp: 1, pp: 2 }, { verdict: "oom", objective: null }),
    trial(3, { tp: 2, pp: 4 }),
  ];
  const { xs, ys, rows } = cellsOf(trials, trials, TP, PP, SPEED);
  expect([xs, ys]).toEqual([[1, 2], [4, 2]]);
  expect(rows[1]![0]).toMatchObject({ trials: 3, oom: 1, best: { number: 1 } });
  expect(rows[0]![0]).toBeNull();
});

test("filtering empties cells and moves none", () => {
  const trials = [trial(0, { tp: 1 }), trial(1, { tp: 2 })];
  const { xs, rows } = cellsOf(trials, [trials[1]!], TP, PP, SPEED);
  expect([xs, rows[0]!.map((cell) => cell?.trials ?? null)]).toEqual([[1, 2], [null, 1]]);
});

test("of the front none is both worse and fuller than another", () => {
  const of = (number: number, value: number, gib: number) => reaching(number, value, { peak_memory_bytes: gib });
  const trials = [of(0, 10, 5), of(1, 20, 8), of(2, 15, 9), of(3, 20, 8), of(4, 30, 20), reaching(5, null), reaching(6, 90, { origin: "confirmation" })];
  expect(frontOf(trials, SPEED).map((one) => one.number)).toEqual([0, 1, 4]);
  expect(frontOf(trials, TIME).map((one) => one.number)).toEqual([0]);
});

test("merit is 1 for the best, whichever way the objective counts", () => {
  expect([merit(SPEED, 20, [10, 20]), merit(TIME, 20, [10, 20])]).toEqual([1, 0]);
});

test("what is fastest once is so by first runs: a lucky second run raises no line and fills no cell", () => {
  const trials = [reaching(0, 4), reaching(1, 5), reaching(2, 9, { origin: "confirmation" })];
  expect(bests(trials, SPEED)).toEqual([4, 5, 5]);
  expect(cellsOf(trials, trials, TP, PP, SPEED).rows[0]![0]).toMatchObject({ best: { number: 1 }, trials: 3 });
});

test("second runs are in their setting's row, which has the figures over all runs and stays the same object", () => {
  const setting = { trial: 0, runs: 1, failed_again: true, objective: { value: 3, low: 2, high: 4 }, step_time_s: 2, gain_over_baseline: { value: 0.5, low: 0.4, high: 0.6 }, gain_rounds: 1 };
  const again = [1, 2].map((number) => reaching(number, number === 1 ? 3 : null, { origin: "confirmation", plan_key: "a" }));
  const trials = [reaching(0, 5, { plan_key: "a", setting }), ...again, reaching(3, 4, { plan_key: "b" })];
  const rows = settingsOf(trials);
  expect(rows.map(({ number }) => number)).toEqual([0, 3]);
  expect([rows[0]!.objective!.value, rows[0]!.gain_over_baseline, rows[0]!.again]).toEqual([3, 0.5, again]);
  expect(settingsOf(trials)).toEqual(rows);
  expect(settingsOf(trials)[0]).toBe(rows[0]);
  expect(settingOf(rows, 2)).toBe(rows[0]);
  // A cell says what the table says.
  expect(cellsOf(trials, rows, TP, PP, SPEED).rows[0]![0]).toMatchObject({ best: { number: 3, objective: { value: 4 } }, trials: 4, oom: 1 });
  // One whose first run is not known has a row of its own.
  expect(settingsOf(again.slice(1)).map(({ number }) => number)).toEqual([2]);
});

test("an event that comes twice changes nothing, and a known trial stays the same object", () => {
  const known = upsert([], [reaching(1, 5), reaching(0, 4)]);
  expect(known.map((one) => one.number)).toEqual([0, 1]);
  expect(upsert(known, [reaching(1, 5)])).toBe(known);
  const after = upsert(known, [reaching(1, 6), reaching(2, 1)]);
  expect([after.length, after[0] === known[0], after[1]!.objective!.value]).toEqual([3, true, 6]);
});

test("ticks are round and within the ends", () => {
  expect(ticks(3, 97, 5)).toEqual([20, 40, 60, 80]);
  expect(ticks(0.12, 0.31, 4)).toEqual([0.15, 0.2, 0.25, 0.3]);
});
