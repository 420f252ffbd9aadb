/** The best first run of every pair of levels of two dimensions, with how many were tried and ran out of memory. */
import type { TrialBrief } from "../../api/types";
import { type Goal, isAgain, isBetter } from "./goal";
import { type Dimension, levelsOf, type Value, valueOf } from "./values";

/** best: null where nothing in the cell was measured. */
export interface Cell {
  readonly x: Value;
  readonly y: Value;
  best: TrialBrief | null;
  trials: number;
  oom: number;
}

/** rows: from the largest y down, each with a cell (or null: nothing was tried) for every x. */
export interface Cells {
  readonly xs: Value[];
  readonly ys: Value[];
  readonly rows: (Cell | null)[][];
}

/** The axes are those of all trials, so that filtering moves nothing; the cells count the shown ones. */
export function cellsOf(all: readonly TrialBrief[], shown: readonly TrialBrief[], x: Dimension, y: Dimension, goal: Goal): Cells {
  const xs = levelsOf(all, x);
  const ys = levelsOf(all, y).reverse();
  const rows: (Cell | null)[][] = ys.map(() => xs.map(() => null));
  for (const trial of shown) {
    const [atX, atY] = [valueOf(trial, x.name), valueOf(trial, y.name)];
    if (atX === null || atY === null) continue;
    const row = rows[ys.indexOf(atY)]!;
    const column = xs.indexOf(atX);
    const cell = (row[column] ??= { x: atX, y: atY, best: null, trials: 0, oom: 0 });
    cell.trials += 1;
    if (trial.verdict === "oom") cell.oom += 1;
    const reached = trial.objective;
    if (reached !== null && !isAgain(trial) && (cell.best === null || isBetter(goal, reached.value, cell.best.objective!.value))) cell.best = trial;
  }
  return { xs, ys, rows };
}
