import { expect, test } from "vitest";
import { ago, amount, bareObjective, bytes, count, deviceTime, duration, gain, gainInterval, interval, number, objective, probability, share, short, span, stepTime, tokensPerS } from "./format";

test("what is not known is a dash, not zero", () => {
  for (const format of [number, amount, count, stepTime, duration, bytes, short, tokensPerS, share, probability, gain])
    expect([format(null), format(undefined)]).toEqual(["–", "–"]);
  expect([ago(null), gainInterval(null), number(NaN), objective(null, "s")]).toEqual(["–", "–", "–", "–"]);
});

test("numbers keep three digits, and their thousands apart", () => {
  expect([0, 7, 0.01234, 12.345, 1234.5, 12345.6, 1234567].map((value) => number(value))).toEqual(
    ["0", "7", "0.0123", "12.3", "1235", "12\u202f346", "1\u202f234\u202f567"], // a rounded one keeps its whole part
  );
  expect([number(-3.14159), number(-0.0000001), number(1e-9), number(2e18)]).toEqual(["−3.14", "−1.00e−7", "1.00e−9", "2.00e+18"]);
});

test("amounts have no zeros that tell nothing", () => {
  expect([0.05, 3, 19.104, 0, 100, 12345.6, 0.0306].map((value) => amount(value))).toEqual(["0.05", "3", "19.1", "0", "100", "12\u202f346", "0.0306"]);
});

test("step times take the unit that fits", () => {
  expect([0.0000123, 0.00085, 0.0123, 0.9994, 0.9996, 1.234, 0].map((value) => stepTime(value))).toEqual(
    ["12.3 µs", "850 µs", "12.3 ms", "999 ms", "1.00 s", "1.23 s", "0 s"],
  );
});

test("durations are as people say them", () => {
  expect([0.4, 5, 9.99, 45, 100, 720, 5940, 12000, 3600 * 47, 3600 * 52, 3600 * 72].map((value) => duration(value))).toEqual(
    ["0.40 s", "5 s", "10 s", "45 s", "2 min", "12 min", "99 min", "3 h 20 min", "47 h", "2 d 4 h", "3 d"],
  );
});

test("durations have as many digits as are asked for, and seconds after minutes from four on", () => {
  expect([1.05, 37.25, 110, 7200].map((value) => duration(value, 3))).toEqual(["1.05 s", "37.3 s", "2 min", "2 h"]);
  expect([37.25, 110, 119.6, 120, 7230].map((value) => duration(value, 4))).toEqual(["37.25 s", "1 min 50 s", "2 min", "2 min", "120 min 30 s"]);
  expect(duration(100.25, 6)).toBe("1 min 40.25 s");
});

test("a span of durations that read alike is one", () => {
  expect([span(100, 101), span(60, 7200)]).toEqual(["2 min", "60 s to 2 h"]);
});

test("ages are told from now on", () => {
  const now = Date.parse("2026-11-22T12:00:00Z");
  expect(["2026-11-22T11:59:55Z", "2026-11-22T11:59:00Z", "2026-11-22T11:00:00Z", "2026-11-21T20:00:00Z", "2026-11-18T12:00:00Z", "2026-11-22T12:00:09Z"].map((at) => ago(at, now))).toEqual(
    ["just now", "60 s ago", "60 min ago", "16 h ago", "4 d ago", "just now"],
  );
});

test("bytes are binary", () => {
  expect([512, 1536, 1024 ** 3 * 74.2, 1024 ** 2 - 1].map((value) => bytes(value))).toEqual(["512 B", "1.50 KiB", "74.2 GiB", "1.00 MiB"]);
});

test("large rates are short", () => {
  expect([short(999), short(12345), short(70.6e9), short(3.2e12), tokensPerS(1_234_000)]).toEqual(["999", "12.3 k", "70.6 B", "3.20 T", "1.23 M tokens/s"]);
});

test("a probability is never certain", () => {
  expect([0, 0.004, 0.5, 0.994, 1].map((value) => probability(value))).toEqual(["< 1 %", "< 1 %", "50 %", "99 %", "> 99 %"]);
});

test("gains have their sign and their interval", () => {
  expect([gain(0.25), gain(-0.031), gain(0), gain(1.5), gain(0.9999), gain(-0.0001)]).toEqual(["+25.0 %", "−3.1 %", "0.0 %", "+150 %", "+100 %", "0.0 %"]);
  expect(gainInterval({ value: 0.25, low: 0.2, high: 0.301 })).toBe("+20.0 to +30.1 %");
  expect(share(0.1234)).toBe("12.3 %");
  expect([share(0), share(0.0000064), share(-0.0000064), share(0.0001)]).toEqual(["0 %", "< 0.01 %", "< 0.01 %", "0.0100 %"]);
});

test("an interval names its unit once, unless its ends have two", () => {
  expect([interval(1.2, 1.31, stepTime), interval(0.9, 1.1, stepTime), interval(2, 2), interval(10, 12)]).toEqual(["1.20 to 1.31 s", "900 ms to 1.10 s", "2", "10 to 12"]);
});

test("an objective has the unit that the service names", () => {
  expect([objective(0.0123, "s"), objective(12345.6, "tokens/s/device"), objective(41.234, "%")]).toEqual(["12.3 ms", "12\u202f346 tokens/s/device", "41.23 %"]);
});

test("beside a label only seconds and percent stand with each number", () => {
  expect([bareObjective(0.0123, "s"), bareObjective(41.234, "%"), bareObjective(12345.6, "tokens/s/device")]).toEqual(["12.3 ms", "41.23 %", "12\u202f346"]);
});

test("work of devices is told in the unit that fits", () => {
  expect([0, 0.000064, 0.02, 0.9, 1, 12.34, 2000, null].map((hours) => deviceTime(hours))).toEqual([
    "0 device-hours",
    "0.23 device-seconds",
    "1.2 device-minutes",
    "54 device-minutes",
    "1 device-hour",
    "12.3 device-hours",
    "2000 device-hours",
    "–",
  ]);
});
