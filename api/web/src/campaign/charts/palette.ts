/** The colours of theme.css as canvases take them, for the theme that is on the screen. */
import { useStore } from "../../use_store";
import { colour, drawnTheme } from "../../theme";

export interface Palette {
  /** From the worst to the best. */
  readonly ramp: readonly string[];
  readonly ink: string;
  readonly muted: string;
  readonly line: string;
  readonly edge: string;
  readonly card: string;
  readonly accent: string;
  readonly best: string;
  readonly oom: string;
  readonly failed: string;
  readonly pruned: string;
}

export const RAMP_STEPS = 5;

/** The step of the ramp for a merit of 0 (worst) to 1 (best). */
export function rampStep(merit: number): number {
  return Math.min(RAMP_STEPS - 1, Math.max(0, Math.floor(merit * RAMP_STEPS)));
}

// Asking the browser for a colour makes it settle all styles: once for a theme, and not for each chart.
const read = new Map<string, Palette>();

export function usePalette(): Palette {
  const theme = useStore(drawnTheme);
  const palette = read.get(theme) ?? readPalette();
  read.set(theme, palette);
  return palette;
}

function readPalette(): Palette {
  return {
    ramp: Array.from({ length: RAMP_STEPS }, (_, step) => colour(`--ramp-${step + 1}`)),
    ink: colour("--ink"),
    muted: colour("--ink-2"),
    line: colour("--line"),
    edge: colour("--edge"),
    card: colour("--card"),
    accent: colour("--accent"),
    best: colour("--best"),
    oom: colour("--oom"),
    failed: colour("--failed"),
    pruned: colour("--pruned"),
  };
}
