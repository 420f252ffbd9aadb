/** The parallel coordinates with what may be chosen about them: which trials are lines, and which dimensions are axes. */
import { useMemo } from "preact/hooks";
import type { TrialBrief } from "../../api/types";
import { setFilters, useFilter } from "../../filters";
import { count } from "../../format";
import { Card, Switch } from "../../ui/basics";
import type { Filters } from "../data/filters";
import { type Goal, isBetter } from "../data/goal";
import { ParallelPlot } from "./parallel_plot";
import { AXES, type Dimension } from "../data/values";
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

const FIRST_AXES = AXES.filter(({ name }) => ["tp", "pp", "dp", "micro_batch_size", "zero_stage", "recompute"].includes(name));

interface ParallelCardProps {
  campaign: string;
  goal: Goal;
  varied: readonly Dimension[];
  trials: readonly TrialBrief[];
  filters: Filters;
  simulated: boolean;
}

export function ParallelCard({ campaign, goal, varied, trials, filters, simulated }: ParallelCardProps) {
  const [chosen] = useFilter("lines");
  const [hidden, hide] = useRemembered<readonly string[]>("meshtune.axes.hidden", []);
  const ended = useMemo(() => trials.filter((trial) => trial.verdict !== null && trial.verdict !== "cancelled"), [trials]);
  const lines = LINES.find(([name]) => name === chosen)?.[0] ?? (ended.length > MANY ? "best" : "all");
  const drawn = useMemo(() => choose(ended, lines, goal), [ended, lines, goal]);
  // One trial, or several that are alike, have no axis in which they differ: then those that every plan has.
  const axes = varied.length > 0 ? varied : FIRST_AXES;
  const dimensions = useMemo(() => axes.filter(({ name }) => !hidden.includes(name)), [axes, hidden]);
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
              {axes.map(({ name, label, title }) => (
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
      <ParallelPlot campaign={campaign} goal={goal} dimensions={dimensions} trials={ended} drawn={drawn} filters={filters} none={noneWords(ended.length, drawn.length, simulated)} />
    </Card>
  );
}

/** Why there is no line; empty where there is one. */
function noneWords(ended: number, drawn: number, simulated: boolean): string {
  if (ended === 0) return "No trial has ended yet: each that does is a line.";
  return drawn === 0 ? `None of ${count(ended)} ended trials was ${simulated ? "simulated to its end" : "measured"}, so there are no best ones: choose all lines.` : "";
}

function choose(ended: readonly TrialBrief[], lines: Lines, goal: Goal): readonly TrialBrief[] {
  if (lines === "all") return ended;
  if (lines === "last") return ended.slice(-LAST);
  const measured = ended.filter((trial) => trial.objective !== null);
  measured.sort((a, b) => (isBetter(goal, a.objective!.value, b.objective!.value) ? -1 : 1));
  return measured.slice(0, Math.ceil(measured.length / 10));
}
