/** WCAG 2.2 AA: text 4.5:1 (1.4.3), marks, lines of charts and the edges of controls 3:1 (1.4.11), in both themes. */
import { describe, expect, test } from "vitest";
import charts from "./campaign/charts/charts.css?raw";
import { PART_WORDS } from "./campaign/data/parts";
import compare from "./pages/compare.css?raw";
import looks from "./theme.css?raw";

const SURFACES = ["bg", "card", "raised"];
const TEXT: [string, string[]][] = [
  ["ink", [...SURFACES, "trouble-bg"]],
  ["ink-2", [...SURFACES, "trouble-bg"]],
  ["accent", [...SURFACES, "trouble-bg"]],
  ["on-accent", ["accent"]],
  ["oom", [...SURFACES, "trouble-bg"]],
  ["best", SURFACES],
  ["bg", ["ink"]],
  ...[1, 2, 3, 4, 5].map((step): [string, string[]] => [`on-ramp-${step}`, [`ramp-${step}`]]),
];
const MARKS: [string, string[]][] = [
  ...["edge", "focus", "ok", "oom", "failed", "pruned", "running", "accent", "best", "ink-2"].map((name): [string, string[]] => [name, SURFACES]),
  ["running", ["line"]], // a bar of progress in its groove
  ...[1, 2, 3, 4, 5].map((step): [string, string[]] => [`ramp-${step}`, ["card"]]),
  ...[1, 2, 3, 4, 5, 6, 7, 8].map((series): [string, string[]] => [`series-${series}`, ["card"]]),
  ...Object.keys(PART_WORDS).map((part): [string, string[]] => [`part-${part}`, ["card", "raised"]]),
];
/** Grids and what is filtered out: a ground that is not to be read. */
const GROUND = new Set([...SURFACES, "trouble-bg", "line"]);

function palette(theme: "light" | "dark"): Map<string, string> {
  const found = (looks + charts + compare).matchAll(/--([a-z0-9_-]+):\s*light-dark\((#[0-9a-f]{6}),\s*(#[0-9a-f]{6})\)/g);
  return new Map([...found].map(([, name = "", light = "", dark = ""]) => [name, theme === "light" ? light : dark]));
}

function luminance(colour: string): number {
  const [r = 0, g = 0, b = 0] = [1, 3, 5].map((at) => {
    const part = parseInt(colour.slice(at, at + 2), 16) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(one: string, other: string): number {
  const [dark = 0, light = 0] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}

test("black on white is 21, as WCAG says", () => {
  expect(contrast("#000000", "#ffffff")).toBeCloseTo(21);
});

describe.each(["light", "dark"] as const)("%s", (theme) => {
  const colours = palette(theme);
  const of = (name: string) => {
    const colour = colours.get(name);
    if (!colour) throw new Error(`theme.css has no --${name}`);
    return colour;
  };
  const cases = (pairs: [string, string[]][]) => pairs.flatMap(([front, backs]) => backs.map((back) => [front, back] as const));
  test.each(cases(TEXT))("text --%s is readable on --%s", (front, back) => {
    expect(contrast(of(front), of(back))).toBeGreaterThanOrEqual(4.5);
  });
  test.each(cases(MARKS))("the mark --%s is seen on --%s", (front, back) => {
    expect(contrast(of(front), of(back))).toBeGreaterThanOrEqual(3);
  });
  test("no colour is left out", () => {
    const looked = new Set([...TEXT, ...MARKS].map(([front]) => front));
    expect([...colours.keys()].filter((name) => !looked.has(name) && !GROUND.has(name))).toEqual([]);
  });
  test("the ramp goes one way, and its best end stands out most from the card", () => {
    const steps = [1, 2, 3, 4, 5].map((step) => contrast(of(`ramp-${step}`), of("card")));
    expect(steps).toEqual([...steps].sort((a, b) => a - b));
  });
});
