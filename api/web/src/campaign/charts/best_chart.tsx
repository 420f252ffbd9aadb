/** What the campaign had found after each trial, or after each device-hour, with the interval of the best. */
import { useCallback, useMemo, useState } from "preact/hooks";
import uPlot from "uplot";
import type { CampaignView, TrialBrief } from "../../api/types";
import { bareObjective, number, objective } from "../../format";
import { go, href } from "../../router";
import { Card, Switch } from "../../ui/basics";
import { setConditions } from "../data/conditions";
import type { Goal } from "../data/goal";
import type { Palette } from "./palette";
import { axisOf, Plot, type PlotOptions, wholeAxis } from "./plot";
import { type Against, bestSoFar } from "../data/progress";

const AGAINST: readonly (readonly [Against, string])[] = [
  ["trials", "by trial"],
  ["device_hours", "by device-hour"],
];

interface BestChartProps {
  campaign: CampaignView;
  goal: Goal;
  trials: readonly TrialBrief[];
  shown: ReadonlySet<TrialBrief>;
}

export function BestChart({ campaign, goal, trials, shown }: BestChartProps) {
  const [against, setAgainst] = useState<Against>("trials");
  const columns = useMemo(() => bestSoFar(trials, goal, against), [trials, goal, against]);
  const baseline = campaign.summary.baseline?.objective.value ?? null;
  const data = useMemo<uPlot.AlignedData>(() => {
    const isShown = new Set([...shown].map((trial) => trial.number));
    const split = (there: boolean) => columns.value.map((value, at) => (isShown.has(columns.numbers[at]!) === there ? value : null));
    const level = columns.x.map(() => baseline);
    return [columns.x, columns.low, columns.high, columns.best, level, split(false), split(true)];
  }, [columns, shown, baseline]);
  const describe = useCallback(
    (index: number | null) => {
      const at = index ?? columns.x.length - 1;
      const best = columns.best[at];
      if (best === undefined || best === null) return "Nothing was measured yet.";
      const until = against === "trials" ? `trial ${columns.numbers[at]}` : `${number(columns.x[at])} device-hours`;
      const own = index === null || columns.value[at] === null ? "" : ` · trial ${columns.numbers[at]}: ${objective(columns.value[at], goal.unit)}`;
      return `Best until ${until}: ${objective(best, goal.unit)}${own}`;
    },
    [columns, against, goal.unit],
  );
  const options = useCallback((palette: Palette) => optionsOf(palette, goal.unit, against), [goal.unit, against]);
  const select = (low: number, high: number) =>
    setConditions({ number: { kind: "range", low: Math.ceil(low), high: Math.floor(high) } });
  return (
    <Card
      title={<>Best so far <span class="muted">{goal.label}</span></>}
      testid="best-so-far"
      aside={<Switch label="Horizontal axis" options={AGAINST} value={against} onChange={setAgainst} testid="against" />}
    >
      <Plot
        label={`Best so far. ${describe(null)}${baseline === null ? "" : ` The baseline: ${objective(baseline, goal.unit)}.`}`}
        height={232}
        data={data}
        options={options}
        describe={describe}
        onSelect={against === "trials" ? select : undefined}
        onPick={(at) => go(href({ page: "trial", id: campaign.id, number: columns.numbers[at]! }))}
      />
      <ul class="chart-legend">
        <li><span class="mark-key best" /> best as first measured, with 95 % interval</li>
        <li><span class="mark-key point" /> trial</li>
        {baseline !== null && <li><span class="mark-key dashed" /> baseline</li>}
      </ul>
    </Card>
  );
}

function optionsOf(palette: Palette, unit: string, against: Against): PlotOptions {
  const stepped = uPlot.paths.stepped!({ align: 1 });
  const points = (fill: string): uPlot.Series => ({ paths: () => null, points: { show: true, size: 5, width: 0, fill } });
  const edge: uPlot.Series = { paths: stepped, points: { show: false } };
  return {
    axes: [
      against === "trials" ? wholeAxis(palette) : { ...axisOf(palette, (value) => number(value, 4), 24), grid: { show: false } },
      axisOf(palette, (value) => bareObjective(value, unit)),
    ],
    series: [
      {},
      edge,
      edge,
      { stroke: palette.best, width: 2, paths: stepped, points: { show: false } },
      { stroke: palette.muted, width: 1.5, dash: [5, 4], points: { show: false } },
      points(palette.line),
      points(palette.accent),
    ],
    bands: [{ series: [2, 1], fill: withAlpha(palette.best, 0.18) }],
  };
}

function withAlpha(colour: string, alpha: number): string {
  return colour.replace(/^rgb\((.*)\)$/, `rgba($1, ${alpha})`);
}
