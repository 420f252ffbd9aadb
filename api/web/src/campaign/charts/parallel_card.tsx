/** The parallel coordinates with a choice of the dimensions that are axes. */
import { useMemo } from "preact/hooks";
import type { TrialBrief } from "../../api/types";
import { Card } from "../../ui/basics";
import type { Filters } from "../data/filters";
import { type Goal, isBetter } from "../data/goal";
import { ParallelPlot } from "./parallel_plot";
import type { Dimension } from "../data/values";
import { useRemembered } from "../data/remembered";

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
  const [asked, ask] = useRemembered<Readonly<Record<string, boolean>>>("meshtune.axes.asked", {});
  const ended = useMemo(() => trials.filter((trial) => trial.verdict !== null && trial.verdict !== "cancelled"), [trials]);
  const drawn = useMemo(() => (ended.length > MANY ? bestOf(ended, goal) : ended), [ended, goal]);
  const dimensions = useMemo(() => varied.filter(({ name }, at) => asked[name] ?? at < MOST_AXES), [varied, asked]);
  return (
    <Card
      title={drawn === ended ? "Parallel coordinates" : "Parallel coordinates of the best tenth"}
      testid="parallel"
      class="wide"
      aside={
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
