/** The best setting of every pair of levels of two dimensions, with how many runs there were and ran out of memory. */
import type { TrialBrief } from "../../api/types";
import { type Goal, isAgain, isBetter } from "./goal";
import type { Setting } from "./settings";
import { type Dimension, levelsOf, type Value, valueOf } from "./values";

/** best: null where nothing in the cell was measured. trials, oom: with second runs. */
export interface Cell {
  readonly x: Value;
  readonly y: Value;
  best: Setting | null;
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
export function cellsOf(all: readonly TrialBrief[], shown: readonly Setting[], x: Dimension, y: Dimension, goal: Goal): Cells {
  const xs = levelsOf(all, x);
  const ys = levelsOf(all, y).reverse();
  const rows: (Cell | null)[][] = ys.map(() => xs.map(() => null));
  for (const row of shown) {
    const [atX, atY] = [valueOf(row, x.name), valueOf(row, y.name)];
    if (atX === null || atY === null) continue;
    const column = xs.indexOf(atX);
    const cell = (rows[ys.indexOf(atY)]![column] ??= { x: atX, y: atY, best: null, trials: 0, oom: 0 });
    const runs = [row, ...(row.again ?? [])];
    cell.trials += runs.length;
    cell.oom += runs.filter(({ verdict }) => verdict === "oom").length;
    const reached = row.objective;
    if (reached !== null && !isAgain(row) && (cell.best === null || isBetter(goal, reached.value, cell.best.objective!.value))) cell.best = row;
  }
  return { xs, ys, rows };
}
