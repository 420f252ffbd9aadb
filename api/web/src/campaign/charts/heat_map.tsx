/** The best of every cell of two dimensions, tp and pp until others are chosen, over all values of the others or at one that
 * is chosen: a button that keeps only the trials of its cell. */
import { useMemo } from "preact/hooks";
import type { TrialBrief } from "../../api/types";
import { number, objective } from "../../format";
import { setFilters, useFilter, useFilters } from "../../filters";
import { Card } from "../../ui/basics";
import { type Cell, cellsOf } from "../data/cells";
import { setConditions } from "../data/conditions";
import { type Condition, type Filters, written } from "../data/filters";
import { type Goal, merit } from "../data/goal";
import { AXES, type Dimension, levelsOf, valueOf } from "../data/values";
import { rampStep } from "./ramp";
import { extent } from "./scales";

interface HeatMapProps {
  goal: Goal;
  dimensions: readonly Dimension[];
  /** Those to choose from, beside tp and pp: in which the trials differ. */
  varied: readonly Dimension[];
  simulated: boolean;
  trials: readonly TrialBrief[];
  shown: readonly TrialBrief[];
  filters: Filters;
}

const [TP, PP] = AXES as [Dimension, Dimension];

export function HeatMap({ goal, dimensions, varied, trials, shown, filters, simulated }: HeatMapProps) {
  const [across, setAcross] = useFilter("across");
  const [up, setUp] = useFilter("up");
  const chosen = (name: string, first: Dimension) => dimensions.find((one) => one.name === name) ?? first;
  const [x, y] = [chosen(across, TP), chosen(up, PP)];
  const slices = useSlices(varied, [x, y]);
  const sliced = useMemo(() => shown.filter((trial) => slices.every(([{ name }, word]) => String(valueOf(trial, name)) === word)), [shown, slices]);
  const { xs, ys, rows } = useMemo(() => cellsOf(trials, sliced, x, y, goal), [trials, sliced, x, y, goal]);
  const ends = extent(rows.flatMap((row) => row.flatMap((cell) => cell?.best?.objective?.value ?? [])));
  return (
    <Card
      title={`Best by ${x.label} × ${y.label}`}
      testid="heat-map"
      aside={
        <div class="heat-choice">
          <Choice label="Across" value={x} first={TP} varied={varied} onChoose={setAcross} />
          <Choice label="Up" value={y} first={PP} varied={varied} onChoose={setUp} />
          <Slices varied={varied.filter((one) => one !== x && one !== y)} trials={trials} slices={slices} />
        </div>
      }
    >
      <div class="chart-scroll">
        <div class="heat" role="group" aria-label={`Best ${goal.label} by ${x.label} and ${y.label}`} style={{ grid: `repeat(${ys.length}, minmax(46px, 1fr)) auto / max-content repeat(${xs.length}, minmax(44px, 1fr))` }}>
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
      </div>
      <p class="chart-note" data-testid="heat-note">
        {goal.label}{simulated && ", simulated"}, {slices.length > 0 ? `only with ${slices.map(([{ label }, word]) => `${label} ${word}`).join(" and ")}` : "the best of all other values"}
      </p>
    </Card>
  );
}

/** A dimension that is held at the value of this word. */
type Slice = readonly [Dimension, string];

/** From the address; an axis of the map is not held. */
function useSlices(varied: readonly Dimension[], axes: readonly Dimension[]): Slice[] {
  const query = useFilters();
  return useMemo(
    () =>
      query.getAll("slice").flatMap((text): Slice[] => {
        const [name, word] = [text.slice(0, text.indexOf(":")), text.slice(text.indexOf(":") + 1)];
        const found = varied.find((one) => one.name === name && !axes.includes(one));
        return found ? [[found, word]] : [];
      }),
    [query.getAll("slice").join("\n"), varied, ...axes],
  );
}

function Slices({ varied, trials, slices }: { varied: readonly Dimension[]; trials: readonly TrialBrief[]; slices: readonly Slice[] }) {
  if (varied.length === 0) return null;
  const hold = (name: string, word: string) => {
    const others = slices.filter(([one]) => one.name !== name).map(([one, word]) => `${one.name}:${word}`);
    setFilters({ slice: word === "" ? others : [...others, `${name}:${word}`] });
  };
  return (
    <details class="menu">
      <summary class="button">Slice{slices.length > 0 && ` (${slices.length})`}</summary>
      <div class="menu-inside pairs">
        {varied.map((one) => (
          <label key={one.name} title={one.title}>
            {one.label}{" "}
            <select value={slices.find(([{ name }]) => name === one.name)?.[1] ?? ""} onChange={(event) => hold(one.name, event.currentTarget.value)}>
              <option value="">best of all</option>
              {levelsOf(trials, one).map((level) => <option key={String(level)}>{String(level)}</option>)}
            </select>
          </label>
        ))}
      </div>
    </details>
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
  const best = measured ? `best ${objective(value, goal.unit)} by trial ${cell.best!.number}` : "no value";
  return (
    <button
      type="button"
      class={measured ? "heat-cell" : cell.oom > 0 ? "heat-cell bare oom" : "heat-cell bare"}
      style={measured ? { background: `var(--ramp-${step})`, color: `var(--on-ramp-${step})` } : undefined}
      aria-pressed={pressed}
      title={`${best}; ${counts}`}
      data-testid={`cell-${x.label}${String(cell.x)}-${y.label}${String(cell.y)}`}
      onClick={choose}
    >
      <span class="visually-hidden">{`${x.label} ${String(cell.x)}, ${y.label} ${String(cell.y)}: `}</span>
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
