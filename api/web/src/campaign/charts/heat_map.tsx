/** The best of every tp x pp cell: a button that keeps only the trials of its cell. */
import { useMemo } from "preact/hooks";
import type { TrialBrief } from "../../api/types";
import { number, objective } from "../../format";
import { Card } from "../../ui/basics";
import { type Cell, cellsOf } from "../data/cells";
import { setConditions } from "../data/conditions";
import type { Condition, Filters } from "../data/filters";
import { type Goal, merit } from "../data/goal";
import { rampStep } from "./palette";
import { extent } from "./scales";

interface HeatMapProps {
  goal: Goal;
  trials: readonly TrialBrief[];
  shown: readonly TrialBrief[];
  filters: Filters;
}

export function HeatMap({ goal, trials, shown, filters }: HeatMapProps) {
  const { xs, ys, rows } = useMemo(() => cellsOf(trials, shown, "tp", "pp", goal), [trials, shown, goal]);
  const ends = extent(rows.flatMap((row) => row.flatMap((cell) => cell?.best?.objective?.value ?? [])));
  return (
    <Card title={<>Best by tp × pp <span class="muted">{goal.label}</span></>} testid="heat-map">
      <div class="heat" role="group" aria-label={`Best ${goal.label} by tp and pp`} style={{ grid: `repeat(${ys.length}, minmax(46px, 1fr)) auto / max-content repeat(${xs.length}, minmax(0, 1fr))` }}>
        {rows.map((row, at) => [
          <div key={`pp${String(ys[at])}`} class="heat-label">pp {String(ys[at])}</div>,
          ...row.map((cell, column) =>
            cell === null ? (
              <div key={column} class="heat-none" aria-hidden="true" />
            ) : (
              <CellButton key={column} cell={cell} goal={goal} ends={ends} pressed={isOnly(filters, cell)} />
            ),
          ),
        ])}
        <div />
        {xs.map((x) => (
          <div key={String(x)} class="heat-label">tp {String(x)}</div>
        ))}
      </div>
    </Card>
  );
}

interface CellButtonProps {
  cell: Cell;
  goal: Goal;
  ends: [number, number] | null;
  pressed: boolean;
}

function CellButton({ cell, goal, ends, pressed }: CellButtonProps) {
  const value = cell.best?.objective?.value;
  const measured = value !== undefined && ends !== null;
  const step = measured ? rampStep(merit(goal, value, ends)) + 1 : 0;
  const choose = () => setConditions(pressed ? { tp: null, pp: null } : { tp: exactly(cell.x), pp: exactly(cell.y) });
  const counts = `${cell.trials} ${cell.trials === 1 ? "trial" : "trials"}, ${cell.oom} out of memory`;
  const best = measured ? `best ${objective(value, goal.unit)} by trial ${cell.best!.number}` : "nothing was measured";
  return (
    <button
      type="button"
      class={measured ? "heat-cell" : "heat-cell bare"}
      style={measured ? { background: `var(--ramp-${step})`, color: `var(--on-ramp-${step})` } : undefined}
      aria-pressed={pressed}
      aria-label={`tp ${String(cell.x)}, pp ${String(cell.y)}: ${best}, ${counts}`}
      title={`${best}; ${counts}`}
      data-testid={`cell-tp${String(cell.x)}-pp${String(cell.y)}`}
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
  return { kind: "range", low: Number(value), high: Number(value) };
}

/** True where the filters keep tp and pp to those of the cell. */
function isOnly({ on }: Filters, cell: Cell): boolean {
  const only = (condition: Condition | undefined, value: Cell["x"]) =>
    condition?.kind === "range" && condition.low === value && condition.high === value;
  return only(on["tp"], cell.x) && only(on["pp"], cell.y);
}
