/** Marks as the paths of an SVG: all marks of a kind are one path, so that thousands cost no more than a few. A kind has a
 * shape beside its colour, for those who do not tell its colour from another. */

export type Point = readonly [x: number, y: number];
export type Shape = "disc" | "square" | "cross" | "triangle" | "diamond" | "plus" | "ring";

const round = (value: number) => Math.round(value * 10) / 10;

/** A mark's outline around a point; a disc and a square are ends of lines of no length, which `.disc` and `.square` thicken. */
const OUTLINES: Readonly<Record<Shape, string>> = {
  disc: "h0",
  square: "h0",
  cross: "m-3-3l6 6m0-6l-6 6",
  plus: "m-3.5 0h7m-3.5-3.5v7",
  triangle: "m0-4l3.8 6.6h-7.6z",
  ring: "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0",
  diamond: "m0-5.5l5.5 5.5l-5.5 5.5l-5.5-5.5z",
};

export function marks(points: readonly Point[], shape: Shape): string {
  return points.map(([x, y]) => `M${round(x)} ${round(y)}${OUTLINES[shape]}`).join("");
}

export function line(points: readonly Point[]): string {
  return points.map(([x, y], at) => `${at ? "L" : "M"}${round(x)} ${round(y)}`).join("");
}

/** Each point's height is held until the next. */
export function steps(points: readonly Point[], end?: number): string {
  const path = points.map(([x, y], at) => (at ? `H${round(x)}V${round(y)}` : `M${round(x)} ${round(y)}`)).join("");
  return path && end !== undefined ? `${path}H${round(end)}` : path;
}

/** From the corner at the upper left. */
export function box(x: number, y: number, width: number, height: number): string {
  return `M${round(x)} ${round(y)}h${round(width)}v${round(height)}h${round(-width)}z`;
}

/** How an outcome is drawn. Its tone is that of `words.ts`. */
const SHAPES: Readonly<Record<string, Shape>> = { ok: "disc", oom: "cross", pruned: "diamond", cancelled: "square", planned: "plus", submitted: "plus", running: "plus" };

export function shapeOf(outcome: string): Shape {
  return SHAPES[outcome] ?? "triangle";
}

/** The step of the ramp, `--ramp-1` to `--ramp-5` of theme.css, for a merit of 0 (worst) to 1 (best). */
export function rampStep(merit: number): number {
  return Math.min(4, Math.max(0, Math.floor(merit * 5)));
}
