/** The best of every cell of two dimensions, tp and pp until others are chosen: a button that keeps only the trials of its cell. */
import { useMemo } from "preact/hooks";
import type { TrialBrief } from "../../api/types";
import { number, objective } from "../../format";
import { useFilter } from "../../filters";
import { Card } from "../../ui/basics";
import { type Cell, cellsOf } from "../data/cells";
import { setConditions } from "../data/conditions";
import { type Condition, type Filters, written } from "../data/filters";
import { type Goal, merit } from "../data/goal";
import { AXES, type Dimension } from "../data/values";
import { rampStep } from "./palette";
import { extent } from "./scales";

interface HeatMapProps {
  goal: Goal;
  dimensions: readonly Dimension[];
  /** Those to choose from, beside tp and pp. */
  varied: readonly Dimension[];
  trials: readonly TrialBrief[];
  shown: readonly TrialBrief[];
  filters: Filters;
}

const [TP, PP] = AXES as [Dimension, Dimension];

export function HeatMap({ goal, dimensions, varied, trials, shown, filters }: HeatMapProps) {
  const [across, setAcross] = useFilter("across");
  const [up, setUp] = useFilter("up");
  const chosen = (name: string, first: Dimension) => dimensions.find((one) => one.name === name) ?? first;
  const [x, y] = [chosen(across, TP), chosen(up, PP)];
  const { xs, ys, rows } = useMemo(() => cellsOf(trials, shown, x, y, goal), [trials, shown, x, y, goal]);
  const ends = extent(rows.flatMap((row) => row.flatMap((cell) => cell?.best?.objective?.value ?? [])));
  return (
    <Card
      title={<>Best by {x.label} × {y.label} <span class="muted">{goal.label}</span></>}
      testid="heat-map"
      aside={
        <div class="heat-choice">
          <Choice label="Across" value={x} first={TP} varied={varied} onChoose={setAcross} />
          <Choice label="Up" value={y} first={PP} varied={varied} onChoose={setUp} />
        </div>
      }
    >
      <div class="heat" role="group" aria-label={`Best ${goal.label} by ${x.label} and ${y.label}`} style={{ grid: `repeat(${ys.length}, minmax(46px, 1fr)) auto / max-content repeat(${xs.length}, minmax(0, 1fr))` }}>
        {rows.map((row, at) => [
          <div key={`up ${String(ys[at])}`} class="heat-label">{y.label} {String(ys[at])}</div>,
          ...row.map((cell, column) =>
            cell === null ? (
              <div key={column} class="heat-none" aria-hidden="true" />
            ) : (
              <CellButton key={column} cell={cell} x={x} y={y} goal={goal} ends={ends} pressed={isOnly(filters, x, y, cell)} />
            ),
          ),
        ])}
        <div />
        {xs.map((value) => (
          <div key={String(value)} class="heat-label">{x.label} {String(value)}</div>
        ))}
      </div>
    </Card>
  );
}

interface ChoiceProps {
  label: string;
  value: Dimension;
  first: Dimension;
  varied: readonly Dimension[];
  onChoose: (name: string) => void;
}

function Choice({ label, value, first, varied, onChoose }: ChoiceProps) {
  const others = varied.filter((one) => one !== first);
  return (
    <select aria-label={label} value={value.name} onChange={(event) => onChoose(event.currentTarget.value)}>
      {[first, ...others].map((one) => (
        <option key={one.name} value={one.name}>
          {one.label}
        </option>
      ))}
    </select>
  );
}

interface CellButtonProps {
  cell: Cell;
  x: Dimension;
  y: Dimension;
  goal: Goal;
  ends: [number, number] | null;
  pressed: boolean;
}

function CellButton({ cell, x, y, goal, ends, pressed }: CellButtonProps) {
  const value = cell.best?.objective?.value;
  const measured = value !== undefined && ends !== null;
  const step = measured ? rampStep(merit(goal, value, ends)) + 1 : 0;
  const choose = () => setConditions({ [x.name]: pressed ? null : exactly(cell.x), [y.name]: pressed ? null : exactly(cell.y) });
  const counts = `${cell.trials} ${cell.trials === 1 ? "trial" : "trials"}, ${cell.oom} out of memory`;
  const best = measured ? `best ${objective(value, goal.unit)} by trial ${cell.best!.number}` : "nothing was measured";
  return (
    <button
      type="button"
      class={measured ? "heat-cell" : "heat-cell bare"}
      style={measured ? { background: `var(--ramp-${step})`, color: `var(--on-ramp-${step})` } : undefined}
      aria-pressed={pressed}
      aria-label={`${x.label} ${String(cell.x)}, ${y.label} ${String(cell.y)}: ${best}, ${counts}`}
      title={`${best}; ${counts}`}
      data-testid={`cell-${x.label}${String(cell.x)}-${y.label}${String(cell.y)}`}
      onClick={choose}
    >
      <strong>{measured ? number(value, 3) + (goal.unit === "%" ? " %" : "") : cell.oom > 0 ? "OOM" : "–"}</strong>
      <span>
        {cell.trials}
        {cell.oom > 0 && ` · ${cell.oom} OOM`}
      </span>
    </button>
  );
}

function exactly(value: Cell["x"]): Condition {
  return typeof value === "number" ? { kind: "range", low: value, high: value } : { kind: "words", words: [String(value)] };
}

/** True where the filters keep both dimensions to those of the cell. */
function isOnly({ on }: Filters, x: Dimension, y: Dimension, cell: Cell): boolean {
  const only = (condition: Condition | undefined, value: Cell["x"]) =>
    condition !== undefined && written(x.name, condition).join() === written(x.name, exactly(value)).join();
  return only(on[x.name], cell.x) && only(on[y.name], cell.y);
}
