/** The parallel coordinates with what may be chosen about them: which trials are lines, and which dimensions are axes. */
import { useMemo } from "preact/hooks";
import type { TrialBrief } from "../../api/types";
import { setFilters, useFilter } from "../../filters";
import { Card, Switch } from "../../ui/basics";
import type { Filters } from "../data/filters";
import { type Goal, isBetter } from "../data/goal";
import { ParallelPlot } from "./parallel_plot";
import type { Dimension } from "../data/values";
import { useRemembered } from "../data/remembered";

type Lines = "all" | "best" | "last";

const LINES: readonly (readonly [Lines, string])[] = [
  ["all", "all"],
  ["best", "best 10 %"],
  ["last", "last 200"],
];
/** Above that many, lines cover each other: the best tenth says more. */
const MANY = 1000;
const LAST = 200;

interface ParallelCardProps {
  campaign: string;
  goal: Goal;
  varied: readonly Dimension[];
  trials: readonly TrialBrief[];
  filters: Filters;
}

export function ParallelCard({ campaign, goal, varied, trials, filters }: ParallelCardProps) {
  const [chosen] = useFilter("lines");
  const [hidden, hide] = useRemembered<readonly string[]>("meshtune.axes.hidden", []);
  const ended = useMemo(() => trials.filter((trial) => trial.verdict !== null && trial.verdict !== "cancelled"), [trials]);
  const lines = LINES.find(([name]) => name === chosen)?.[0] ?? (ended.length > MANY ? "best" : "all");
  const drawn = useMemo(() => choose(ended, lines, goal), [ended, lines, goal]);
  const dimensions = useMemo(() => varied.filter(({ name }) => !hidden.includes(name)), [varied, hidden]);
  return (
    <Card
      title="Parallel coordinates"
      testid="parallel"
      class="wide"
      aside={
        <>
          <Switch label="Lines" options={LINES} value={lines} onChange={(name) => setFilters({ lines: name })} testid="lines" />
          <details class="menu">
            <summary class="button">Axes</summary>
            <div class="menu-inside">
              {varied.map(({ name, label, title }) => (
                <label key={name} title={title}>
                  <input
                    type="checkbox"
                    checked={!hidden.includes(name)}
                    onChange={() => hide(hidden.includes(name) ? hidden.filter((one) => one !== name) : [...hidden, name])}
                  />
                  {label}
                </label>
              ))}
            </div>
          </details>
        </>
      }
    >
      <ParallelPlot campaign={campaign} goal={goal} dimensions={dimensions} trials={ended} drawn={drawn} filters={filters} />
    </Card>
  );
}

function choose(ended: readonly TrialBrief[], lines: Lines, goal: Goal): readonly TrialBrief[] {
  if (lines === "all") return ended;
  if (lines === "last") return ended.slice(-LAST);
  const measured = ended.filter((trial) => trial.objective !== null);
  measured.sort((a, b) => (isBetter(goal, a.objective!.value, b.objective!.value) ? -1 : 1));
  return measured.slice(0, Math.ceil(measured.length / 10));
}
