/** The charts of a campaign. */
import type { Analysis, CampaignView, TrialBrief } from "../../api/types";
import type { Filters } from "../data/filters";
import type { Goal } from "../data/goal";
import type { Dimension } from "../data/values";
import { BestChart } from "./best_chart";
import { HeatMap } from "./heat_map";
import { ParallelCard } from "./parallel_card";
import { Scatter } from "./scatter";
import { SensitivityCard } from "./sensitivity";
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
  const made = campaign.simulated;
  return (
    <div data-testid="charts">
      <div class="charts">
        <BestChart campaign={campaign} goal={goal} trials={trials} shown={shownSet} simulated={made} />
        <HeatMap goal={goal} dimensions={dimensions} varied={differing} trials={trials} shown={shown} filters={filters} simulated={made} />
        <Scatter campaign={campaign} goal={goal} dimensions={differing} trials={trials} shown={shownSet} simulated={made} />
      </div>
      <div class="two-thirds">
        <ParallelCard campaign={campaign.id} goal={goal} varied={varied} trials={trials} filters={filters} simulated={made} />
        <SensitivityCard analysis={analysis} />
      </div>
      <TimelineCard campaign={campaign} goal={goal} trials={trials} shown={shownSet} />
      <SizesCard campaign={campaign.id} analysis={analysis} />
    </div>
  );
}
