/** Which campaign this is, how it stands, and what can be done with it. */
import type { CampaignView } from "../../api/types";
import { CampaignActions, MOVES } from "../../campaign_actions";
import { count, counted, deviceTime, duration } from "../../format";
import { useStore } from "../../use_store";
import { Chip } from "../../ui/basics";
import { LiveMark } from "../../ui/states";
import { Ago } from "../../ui/time";
import { Title } from "../../ui/title";
import { CAMPAIGN_TONES } from "../../words";
import type { Feed } from "../data/feed";
import { More } from "./more";

export function Header({ campaign, feed }: { campaign: CampaignView; feed: Feed }) {
  const stream = useStore(feed.stream.state);
  return (
    <section class="campaign-head" data-testid="campaign-head">
      <div class="page-head">
        <Title>{campaign.name}</Title>
        <Chip tone={CAMPAIGN_TONES[campaign.state]} testid="state">{campaign.state}</Chip>
        <div class="row push">
          <LiveMark state={stream} />
          {MOVES[campaign.state].length > 1 && <CampaignActions campaign={campaign} onChange={() => feed.refresh()} />}
          <More campaign={campaign} feed={feed} />
        </div>
      </div>
      <p class="row facts small muted">
        {factsOf(campaign).map((fact) => <span key={fact}>{fact}</span>)}
        <span>started <Ago time={campaign.created_at} /></span>
      </p>
      <p class="small muted" data-testid="standing">{standing(campaign)}</p>
    </section>
  );
}

/** True while trials may still come. */
export function goesOn({ state }: Pick<CampaignView, "state">): boolean {
  return state === "running" || state === "paused" || state === "cancelling";
}

function factsOf(campaign: CampaignView): string[] {
  const { model, cluster, nodes, devices, owner, legal, combinations, elapsed_s, summary } = campaign;
  return [
    `${model} on ${cluster}, ${counted(nodes, "node")}, ${counted(devices, "device")}`,
    `${count(legal)} of ${count(combinations)} combinations are legal`,
    ...(goesOn(campaign) ? [] : [`${counted(summary.done, "trial")} in ${duration(elapsed_s)}, ${count(summary.failed)} failed`, deviceTime(summary.device_hours)]),
    owner === "" ? "from the command line" : `by ${owner}`,
  ];
}

/** Why it or its search ended; where nothing was measured, that stands in place of the answer. */
function standing({ reason, search_ended, summary, state }: CampaignView): string {
  const whole = goesOn({ state }) ? search_ended && `the search has ended: ${search_ended}` : summary.fastest_once && reason;
  return whole ? `${whole.charAt(0).toUpperCase()}${whole.slice(1)}.` : "";
}
