import { expect, test } from "vitest";
import { timelineOf } from "./lanes";
import { trial } from "./trial.fixture";

const START = Date.parse("2026-01-01T00:00:00Z");
const at = (seconds: number) => new Date(START + seconds * 1000).toISOString();
const ran = (number: number, from: number, to: number | null, nodes: string[]) => trial(number, {}, { started_at: at(from), finished_at: to === null ? null : at(to), nodes });
const NOW = START + 100_000;

test("a trial is a bar on each of its nodes, from the first start on, and the first node is the uppermost", () => {
  const { names, bars } = timelineOf([ran(0, 5, 15, ["n10", "n2"]), ran(1, 15, 20, ["n2"])], NOW);
  expect(names).toEqual(["n10", "n2"]);
  expect(bars.map(({ trial, lane, from, to }) => [trial.number, lane, from, to])).toEqual([[0, 0, 0, 10], [0, 1, 0, 10], [1, 1, 10, 15]]);
});

test("trials that share a node at once have lanes of their own there", () => {
  const { names, bars } = timelineOf([ran(0, 0, 10, ["n1"]), ran(1, 5, 12, ["n1"]), ran(2, 11, 14, ["n1"])], NOW);
  expect(names).toEqual(["n1 · 2", "n1 · 1"]);
  expect(bars.map(({ trial, lane }) => [trial.number, lane])).toEqual([[0, 1], [1, 0], [2, 1]]);
});

test("slots are those of the whole campaign: no lane holds two trials at once, and what runs ends now", () => {
  const { names, bars } = timelineOf([ran(0, 0, 10, []), ran(1, 0, null, []), ran(2, 10, 30, [])], NOW);
  expect(names).toEqual(["slot 2", "slot 1"]);
  expect(bars.map(({ trial, lane, to }) => [trial.number, lane, to])).toEqual([[1, 0, 100], [0, 1, 10], [2, 1, 30]]);
});

test("of too many nodes it is said how many are not drawn, and a trial that has not started has no bar", () => {
  const many = Array.from({ length: 40 }, (_, node) => ran(node, node, node + 1, [`n${node}`]));
  expect(timelineOf(many, NOW)).toMatchObject({ left: 8 });
  expect(timelineOf([trial(0)], NOW).bars).toEqual([]);
});
