/** The charts of a campaign: the best so far with what matters, then what the trials differ in, then when they ran. */
import { useMemo } from "preact/hooks";
import type { Analysis, CampaignView, TrialBrief } from "../../api/types";
import { type Filters, passes } from "../data/filters";
import type { Goal } from "../data/goal";
import { settingsOf } from "../data/settings";
import type { Dimension } from "../data/values";
import { BestChart } from "./best_chart";
import { HeatMap } from "./heat_map";
import { ParallelCard } from "./parallel_plot";
import { Scatter } from "./scatter";
import { byImportance, SensitivityCard } from "./sensitivity";
import { SizesCard } from "./sizes";
import { TimelineCard } from "./timeline";

/** dimensions: all of the campaign's. varied: those in which the trials differ, without those that follow from others;
 * differing: with these. shown: the trials that pass the filters. */
export interface ChartsTabProps {
  campaign: CampaignView;
  goal: Goal;
  dimensions: readonly Dimension[];
  varied: readonly Dimension[];
  differing: readonly Dimension[];
  trials: readonly TrialBrief[];
  shown: readonly TrialBrief[];
  filters: Filters;
  analysis: Analysis | undefined;
}

export function ChartsTab({ campaign, goal, dimensions, varied, differing, trials, shown, filters, analysis }: ChartsTabProps) {
  const shownSet = new Set(shown);
  const settings = useMemo(() => settingsOf(trials).filter((row) => passes(row, filters)), [trials, filters]);
  // Those that matter first, so that the axes and the menus are in one order.
  const own = useMemo(() => byImportance(varied, analysis), [varied, analysis]);
  const all = useMemo(() => [...own, ...differing.filter((one) => !own.includes(one))], [own, differing]);
  return (
    <div class="chart-cards" data-testid="charts">
      <div class="chart-row">
        <BestChart campaign={campaign} goal={goal} trials={trials} shown={shownSet} />
        <SensitivityCard analysis={analysis} dimensions={dimensions} />
      </div>
      {own.length > 1 && <ParallelCard campaign={campaign.id} goal={goal} varied={own} trials={trials} filters={filters} />}
      <div class="chart-row">
        {own.length > 1 && <HeatMap goal={goal} dimensions={all} trials={trials} settings={settings} filters={filters} simulated={campaign.simulated} />}
        <Scatter campaign={campaign} goal={goal} dimensions={all} trials={trials} shown={shownSet} />
      </div>
      {!campaign.simulated && <TimelineCard campaign={campaign} goal={goal} trials={trials} shown={shownSet} />}
      <SizesCard campaign={campaign.id} analysis={analysis} />
    </div>
  );
}
