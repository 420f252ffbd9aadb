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

type Lines = "all" | "best";

const LINES: readonly (readonly [Lines, string])[] = [
  ["all", "all"],
  ["best", "best 10 %"],
];
/** Above that many, lines cover each other: the best tenth says more. */
const MANY = 1000;
/** More axes are not read. */
const MOST_AXES = 7;

interface ParallelCardProps {
  campaign: string;
  goal: Goal;
  /** In which the trials differ, those that matter most first. */
  varied: readonly Dimension[];
  trials: readonly TrialBrief[];
  filters: Filters;
}

export function ParallelCard({ campaign, goal, varied, trials, filters }: ParallelCardProps) {
  const [chosen] = useFilter("lines");
  const [asked, ask] = useRemembered<Readonly<Record<string, boolean>>>("meshtune.axes.asked", {});
  const ended = useMemo(() => trials.filter((trial) => trial.verdict !== null && trial.verdict !== "cancelled"), [trials]);
  const lines = LINES.find(([name]) => name === chosen)?.[0] ?? (ended.length > MANY ? "best" : "all");
  const drawn = useMemo(() => (lines === "all" ? ended : bestOf(ended, goal)), [ended, lines, goal]);
  const dimensions = useMemo(() => varied.filter(({ name }, at) => asked[name] ?? at < MOST_AXES), [varied, asked]);
  return (
    <Card
      title="Parallel coordinates"
      testid="parallel"
      class="wide"
      aside={
        <>
          <Switch label="Lines" options={LINES} value={lines} onChange={(name) => setFilters({ lines: name })} testid="lines" />
          <details class="menu">
            <summary class="button">Axes{dimensions.length < varied.length && ` (${dimensions.length} of ${varied.length})`}</summary>
            <div class="menu-inside">
              {varied.map(({ name, label, title }) => (
                <label key={name} title={title}>
                  <input
                    type="checkbox"
                    checked={dimensions.some((one) => one.name === name)}
                    onChange={(event) => ask({ ...asked, [name]: event.currentTarget.checked })}
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

function bestOf(ended: readonly TrialBrief[], goal: Goal): readonly TrialBrief[] {
  const measured = ended.filter((trial) => trial.objective !== null);
  measured.sort((a, b) => (isBetter(goal, a.objective!.value, b.objective!.value) ? -1 : 1));
  return measured.slice(0, Math.ceil(measured.length / 10));
}
