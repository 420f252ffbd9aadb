/** Which campaign this is, how it stands, and what can be done with it. */
import { useMemo } from "preact/hooks";
import type { CampaignView } from "../../api/types";
import { CampaignActions } from "../../campaign_actions";
import { count, duration, number, probability } from "../../format";
import { href } from "../../router";
import { useStore } from "../../use_store";
import { Button, Chip, Tags } from "../../ui/basics";
import { Download } from "../../ui/download";
import { JsonLink } from "../../ui/json";
import { LiveMark } from "../../ui/states";
import { Ago, useNow } from "../../ui/time";
import { Title } from "../../ui/title";
import { CAMPAIGN_TONES } from "../../words";
import { UseButton } from "./use_button";
import { More } from "./more";
import type { Feed } from "../data/feed";

export function Header({ campaign, feed }: { campaign: CampaignView; feed: Feed }) {
  const stream = useStore(feed.stream.state);
  const paused = stream === "paused";
  const path = `campaigns/${encodeURIComponent(campaign.id)}`;
  const good = (campaign.summary.recommended ?? campaign.summary.fastest_once)?.trial;
  const start = feed.snapshot.get().trials.find((trial) => trial.number === good)?.plan ?? campaign.spec.baseline;
  return (
    <section class="campaign-head" data-testid="campaign-head">
      <div class="page-head">
        <Title>{campaign.name}</Title>
        <Chip tone={CAMPAIGN_TONES[campaign.state]} testid="state">{campaign.state}</Chip>
        {campaign.simulated && <Chip title="No device ran these trials">simulated</Chip>}
        <div class="row push">
          <LiveMark state={stream} />
          <Button
            kind="quiet"
            aria-pressed={paused}
            onClick={() => (paused ? feed.stream.resume() : feed.stream.pause())}
            data-testid="pause-live"
          >
            {paused ? "Go live" : "Pause live"}
          </Button>
          <CampaignActions campaign={campaign} onChange={() => feed.refresh()} />
          <More campaign={campaign} path={path} start={start} onChange={() => feed.refresh()} />
          <UseButton path={path} simulated={campaign.simulated} disabled={campaign.summary.recommended === null} />
        </div>
      </div>
      <p class="muted campaign-facts">
        {facts(campaign).map((fact) => (
          <span key={fact}>{fact}</span>
        ))}
        <Worked campaign={campaign} />
        <span>started <Ago time={campaign.created_at} /></span>
        <span class="row" data-testid="downloads">
          Save:
          <Download kind="link" path={`${path}/report`} name={`${campaign.id}.html`}>report</Download>
          <Download kind="link" path={`${path}/data?format=csv`} name={`${campaign.id}.csv`}>CSV</Download>
          <Download kind="link" path={`${path}/spec.yaml`} name={`${campaign.id}.yaml`}>spec</Download>
        </span>
        <span class="row">
          JSON:
          <JsonLink path={path} label="campaign" />
          <JsonLink path={`${path}/trials?view=brief&page_size=1000`} label="trials" />
          <JsonLink path={`${path}/best?top=10`} label="best" />
          <JsonLink path={`${path}/analysis`} label="analysis" />
        </span>
      </p>
      <Tags tags={campaign.tags} />
      {campaign.notes && <p class="notes" data-testid="notes">{campaign.notes}</p>}
      {campaign.lessons.length > 0 && (
        <p class="muted" data-testid="lessons">
          Learns from{" "}
          {campaign.lessons.map(({ campaign_id, trials, weight, calibration }, at) => (
            <span key={campaign_id}>
              {at > 0 && ", "}
              <a href={href({ page: "campaign", id: campaign_id })}>{campaign_id}</a> ({calibration && "calibration of "}{count(trials)} {trials === 1 ? "trial" : "trials"}, each worth {number(weight, 2)} of its own)
            </span>
          ))}
        </p>
      )}
      {standing(campaign).map((words) => (
        <p key={words} data-testid="standing">{words}</p>
      ))}
    </section>
  );
}

function facts({ model, cluster, nodes, devices, owner, legal, combinations }: CampaignView): string[] {
  return [
    `${model} on ${cluster}, ${count(nodes)} ${nodes === 1 ? "node" : "nodes"}, ${count(devices)} ${devices === 1 ? "device" : "devices"}`,
    `${count(legal)} of ${count(combinations)} combinations are legal`,
    owner === "" ? "from the command line" : `by ${owner}`,
  ];
}

/** The service says it with every reading of the campaign; between two of them it goes on here. */
function Worked({ campaign }: { campaign: CampaignView }) {
  const read = useMemo(() => Date.now(), [campaign]);
  const now = useNow();
  const since_s = campaign.state === "running" ? Math.max(0, now - read) / 1000 : 0;
  return <span>worked on for {duration(campaign.elapsed_s + since_s)}</span>;
}

/** What it waits for, why it ended, and what the search still hopes for. */
function standing({ trouble, reason, search_ended, chance_left }: CampaignView): string[] {
  const ended = search_ended && !reason.includes(search_ended) && `The search has ended: ${search_ended}.`;
  const said = [trouble && `Waiting: ${trouble}.`, reason && `${capital(reason)}.`, ended].filter((words) => words !== false);
  if (chance_left !== null) said.push(`The chance that a better plan is left: ${probability(chance_left)}.`);
  return said.filter((words) => words !== "").map((words) => words.replace(/\.\.$/, "."));
}

function capital(words: string): string {
  return words.charAt(0).toUpperCase() + words.slice(1);
}
