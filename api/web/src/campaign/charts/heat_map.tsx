/** The best of every cell of two dimensions, those that matter most until others are chosen: a button that keeps only the
 * trials of its cell. A filter holds any other dimension at a value. */
import { useMemo } from "preact/hooks";
import type { TrialBrief } from "../../api/types";
import { bareObjective, counted, number } from "../../format";
import { Card } from "../../ui/basics";
import { type Cell, cellsOf } from "../data/cells";
import { setConditions } from "../data/conditions";
import type { Condition, Filters } from "../data/filters";
import { type Goal, merit } from "../data/goal";
import type { Setting } from "../data/settings";
import type { Dimension } from "../data/values";
import { useChoice } from "./choices";
import { rampStep } from "./marks";
import { extent } from "./scales";

interface HeatMapProps {
  goal: Goal;
  /** Those to choose from, in which the trials differ; the two that matter most come first. */
  dimensions: readonly Dimension[];
  simulated: boolean;
  trials: readonly TrialBrief[];
  /** Those that pass the filters, as the table has them. */
  settings: readonly Setting[];
  filters: Filters;
}

export function HeatMap({ goal, dimensions, trials, settings, filters, simulated }: HeatMapProps) {
  const [x, acrossChoice] = useChoice("across", "Across", dimensions, dimensions[0]!);
  const [y, upChoice] = useChoice("up", "Up", dimensions, dimensions[1]!);
  const { xs, ys, rows } = useMemo(() => cellsOf(trials, settings, x, y, goal), [trials, settings, x, y, goal]);
  const ends = extent(rows.flatMap((row) => row.flatMap((cell) => cell?.best?.objective?.value ?? [])));
  const button = (cell: Cell, column: number) => {
    const value = cell.best?.objective?.value;
    const measured = value !== undefined && ends !== null;
    const step = measured ? rampStep(merit(goal, value, ends)) + 1 : 0;
    const only = { [x.name]: exactly(cell.x), [y.name]: exactly(cell.y) };
    const pressed = Object.entries(only).every(([name, condition]) => JSON.stringify(filters.on[name]) === JSON.stringify(condition));
    const best = measured ? `best ${goal.label} ${bareObjective(value, goal.unit)} by trial ${cell.best!.number}` : "no value";
    return (
      <button
        key={column}
        type="button"
        class={measured ? "heat-cell" : cell.oom > 0 ? "heat-cell bare oom" : "heat-cell bare"}
        style={measured ? { background: `var(--ramp-${step})`, color: `var(--on-ramp-${step})` } : undefined}
        aria-pressed={pressed}
        title={`${best}; ${counted(cell.trials, "trial")}, ${cell.oom} out of memory`}
        data-testid={`cell-${x.name}${String(cell.x)}-${y.name}${String(cell.y)}`}
        onClick={() => setConditions(pressed ? { [x.name]: null, [y.name]: null } : only)}
      >
        <span class="visually-hidden">{`${x.label} ${String(cell.x)}, ${y.label} ${String(cell.y)}: `}</span>
        <strong>{measured ? number(value, 3) + (goal.unit === "%" ? " %" : "") : cell.oom > 0 ? "OOM" : "–"}</strong>
        <span>
          {cell.trials}
          {cell.oom > 0 && ` · ${cell.oom} OOM`}
        </span>
      </button>
    );
  };
  return (
    <Card
      title={`Best by ${x.label} × ${y.label}`}
      testid="heat-map"
      aside={<div class="row heat-choice">{acrossChoice}{upChoice}</div>}
    >
      <div class="chart-scroll">
        <div class="heat" role="group" aria-label={`Best ${goal.label} by ${x.label} and ${y.label}`} style={{ grid: `repeat(${ys.length}, minmax(46px, 1fr)) auto / fit-content(120px) repeat(${xs.length}, minmax(44px, 1fr))` }}>
          {rows.map((row, at) => [
            <div key={`up ${String(ys[at])}`} class="heat-label" title={y.title}>{y.label} {String(ys[at])}</div>,
            ...row.map((cell, column) => (cell ? button(cell, column) : <div key={column} class="heat-none" aria-hidden="true" />)),
          ])}
          <div />
          {xs.map((value) => (
            <div key={String(value)} class="heat-label" title={x.title}>{x.label} {String(value)}</div>
          ))}
        </div>
      </div>
      <p class="chart-note">
        {goal.label}{simulated && ", simulated"}: the best of the settings that pass the filters, over all their runs
      </p>
    </Card>
  );
}

function exactly(value: Cell["x"]): Condition {
  return typeof value === "number" ? { kind: "range", low: value, high: value } : { kind: "words", words: [String(value)] };
}
