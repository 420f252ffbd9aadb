import { expect, test } from "vitest";
import { bytes, duration, number, share, short, stepTime } from "../../format";
import { byteNumbers, doublings, levels, numbers, times, whole } from "./axes";
import { apart, inWords, LETTER_PX, linear, logarithmic, logTicks, type Scale, ticks, toPixel, toValue } from "./scales";

const words = (axis: ReturnType<typeof numbers>, about = 6) => axis.ticks(axis.scale(0, 300), about).map(([, text]) => text);

test("a value comes back from its pixel, on linear and on log scales", () => {
  for (const scale of [linear(3, 90, 20, 220), logarithmic(0.5, 4096, 220, 20)]) {
    for (const value of [3, 17.5, 90]) expect(toValue(scale, toPixel(scale, value))).toBeCloseTo(value);
  }
});

test("equal ratios are equally far apart on a log scale, and 0 lies at its end", () => {
  const scale = logarithmic(1, 1000, 0, 300);
  expect([1, 10, 100, 1000, 0].map((value) => Math.round(toPixel(scale, value)))).toEqual([0, 100, 200, 300, 0]);
});

test("a single value lies in the middle", () => {
  for (const scale of [linear(7, 7, 0, 100), logarithmic(7, 7, 0, 100), linear(0, 0, 0, 100)]) expect(toPixel(scale, scale.low === -1 ? 0 : 7)).toBeCloseTo(50);
});

test("counts have whole ticks, bytes powers of two, times minutes and hours", () => {
  expect(ticks(0, 3, 8, "whole")).toEqual([0, 1, 2, 3]);
  expect(words(whole([0, 66], "trial"))).toEqual(["0", "20", "40", "60"]);
  expect(words(whole([0], "trial"))).toEqual(["0"]);
  expect(words(byteNumbers([0, 80 * 2 ** 30]))).toEqual(["0 B", "16 GiB", "32 GiB", "48 GiB", "64 GiB", "80 GiB"]);
  expect(words(times([1.03, 1.32]))).toEqual(["1.05 s", "1.1 s", "1.15 s", "1.2 s", "1.25 s", "1.3 s"]);
  expect(words(times([95, 128]))).toEqual(["1 min 40 s", "1 min 50 s", "2 min"]);
  expect(words(times([0, 3 * 3600]))).toEqual(["0 s", "30 min", "60 min", "90 min", "2 h", "2 h 30 min", "3 h"]);
});

test("ticks have as many digits as tell them apart, and no zeros that say nothing", () => {
  expect(inWords([0.5, 1, 1.5], number).map(([, text]) => text)).toEqual(["0.5", "1", "1.5"]);
  expect(inWords([1.0001, 1.0002, 1.0003], stepTime).map(([, text]) => text)).toEqual(["1.0001 s", "1.0002 s", "1.0003 s"]);
  expect(inWords([0, 0.5, 1], share).map(([, text]) => text)).toEqual(["0 %", "50 %", "100 %"]);
  expect(inWords([2 ** 30, 1.5 * 2 ** 30], bytes).map(([, text]) => text)).toEqual(["1 GiB", "1.5 GiB"]);
});

test.each([
  [linear(0, 3000, 40, 350)],
  [linear(1_000_000, 1_000_900, 40, 350)],
])("no two ticks overlap or read alike: %o", (scale: Scale) => {
  const kept = apart(inWords(ticks(scale.low, scale.high, 6), number), scale);
  expect(kept.length).toBeGreaterThan(1);
  kept.slice(1).forEach(([at, text], index) => {
    const [before, said] = kept[index]!;
    expect(toPixel(scale, at) - toPixel(scale, before)).toBeGreaterThanOrEqual(((text.length + said.length) / 2) * LETTER_PX);
    expect(text).not.toBe(said);
  });
});

test("degrees and nodes have ticks where they occur; levels lie side by side", () => {
  expect(words(doublings([8, 1, 2, 2], "tp"))).toEqual(["1", "2", "8"]);
  const axis = levels(["none", "selective", "full"], "recompute");
  expect(axis.ticks(axis.scale(0, 300), 1)).toEqual([[0, "none"], [1, "selective"], [2, "full"]]);
  expect(toPixel(axis.scale(0, 300), 1)).toBe(150);
});

test.each([
  ["times", times, [[0, 240], [150, 260], [3590, 3700], [0, 93_000], [86_000, 90_000]]],
  ["bytes", byteNumbers, [[0, 3], [2 ** 33, 2 ** 33 + 2 ** 20], [0, 2 ** 45]]],
  ["shares", (ends: number[]) => numbers(ends, { format: share }), [[0, 1e-5], [0.998, 0.9999], [0, 1]]],
  ["counts", (ends: number[]) => whole(ends, "trial"), [[0, 1], [99_990, 100_010]]],
  ["short numbers", (ends: number[]) => numbers(ends, { format: short }), [[1_234_000, 1_234_900], [0, 40]]],
])("no two ticks of %s read alike, however many there is room for", (_, axis, ranges) => {
  for (const ends of ranges) {
    for (const about of [1, 2, 3, 5, 8, 13]) {
      const found = words(axis(ends), about);
      expect(found.length).toBeGreaterThan(0);
      expect(new Set(found).size, `${ends} ${found}`).toBe(found.length);
    }
  }
});

test("where no digits tell ticks apart, fewer are drawn", () => {
  expect(inWords([150, 180, 210, 240, 270], (value) => duration(value)).map(([, text]) => text)).toEqual(["3 min", "4 min", "5 min"]);
  expect(inWords([1, 1.1, 1.2], () => "1")).toEqual([[1, "1"]]);
});

test("an axis of no values has no ticks, and one with 0 is not on a log scale", () => {
  expect(words(numbers([]))).toEqual([]);
  expect(numbers([0, 10], { log: true }).scale(0, 1).log).toBe(false);
  expect(numbers([1, 10], { log: true }).scale(0, 1).log).toBe(true);
});

test("ticks of a log scale are round, powers of two where bytes are counted, and within less than that as on a linear one", () => {
  const of = (low: number, high: number, steps: "round" | "bytes" = "round") => logTicks(logarithmic(low, high, 0, 1), steps);
  expect(of(0.9, 60)).toEqual([1, 2, 5, 10, 20, 50]);
  expect(of(90, 370)).toEqual([100, 150, 200, 250, 300, 350]);
  expect(of(2 ** 30, 2 ** 33, "bytes")).toEqual([2 ** 30, 2 ** 31, 2 ** 32, 2 ** 33]);
});
