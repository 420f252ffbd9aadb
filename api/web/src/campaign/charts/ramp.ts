/** The colours from the worst to the best: `--ramp-1` to `--ramp-5` of theme.css. */
const RAMP_STEPS = 5;

/** The step of the ramp for a merit of 0 (worst) to 1 (best). */
export function rampStep(merit: number): number {
  return Math.min(RAMP_STEPS - 1, Math.max(0, Math.floor(merit * RAMP_STEPS)));
}
