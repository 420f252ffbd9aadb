/** Campaigns as rows; on a phone each row becomes a card (pages.css). */
import type { CampaignView } from "../api/types";
import { NOT_CONFIRMED } from "../campaign/data/goal";
import { CampaignActions, MOVES } from "../campaign_actions";
import { amount, count, gain, objective, UNKNOWN } from "../format";
import { href } from "../router";
import { Chip, Progress, Tags } from "../ui/basics";
import { JsonLink } from "../ui/json";
import { Head, TableFrame, type Sort } from "../ui/table";
import { Ago } from "../ui/time";
import { CAMPAIGN_TONES, CAUSE_WORDS, failureCounts, trialsOf } from "../words";

interface TableProps {
  campaigns: CampaignView[];
  sort: Sort;
  onSort: (sort: Sort) => void;
  onChange: () => void;
}

export function CampaignTable({ campaigns, sort, onSort, onChange }: TableProps) {
  const head = { sort, onSort };
  return (
    <TableFrame label="Campaigns" testid="campaign-table">
      <thead>
        <tr>
          <Head {...head} by="name">
            Campaign
          </Head>
          <Head {...head} by="state">
            State
          </Head>
          <Head {...head}>Model and cluster</Head>
          <Head {...head}>Progress</Head>
          <Head {...head} title="The plan to use, and its gain over the baseline">
            Recommended
          </Head>
          <Head {...head} title="The best plan by its first run alone, and its gain over the baseline">
            Fastest once
          </Head>
          <Head {...head}>Failures</Head>
          <Head {...head} by="created_at" descendingFirst>
            Started
          </Head>
          <th scope="col">
            <span class="visually-hidden">Actions</span>
          </th>
        </tr>
      </thead>
      <tbody>
        {campaigns.map((campaign) => (
          <Row key={campaign.id} campaign={campaign} onChange={onChange} />
        ))}
      </tbody>
    </TableFrame>
  );
}

function Row({ campaign, onChange }: { campaign: CampaignView; onChange: () => void }) {
  return (
    <tr data-testid="campaign" data-id={campaign.id}>
      <td class="campaign-name">
        <a href={href({ page: "campaign", id: campaign.id })}>{campaign.name}</a>
        <div class="muted small">{campaign.id}</div>
        <Tags tags={campaign.tags} />
      </td>
      <td class="campaign-state">
        <Chip tone={CAMPAIGN_TONES[campaign.state]}>{campaign.state}</Chip>
        {saying(campaign) && (
          <div class="small clipped" title={saying(campaign)}>
            {saying(campaign)}
          </div>
        )}
      </td>
      <td data-label="On">
        <div>{campaign.model}</div>
        <div class="muted small" title={`${count(campaign.nodes)} nodes, ${count(campaign.devices)} devices`}>
          {campaign.cluster}, <span class="nowrap">{size(campaign)}</span>
        </div>
        {campaign.simulated && <div class="small mark">simulated</div>}
      </td>
      <td data-label="Progress" class="campaign-progress">
        <Done campaign={campaign} />
      </td>
      <td data-label="Recommended" data-testid="recommended">
        <Found found={campaign.summary.recommended} baseline={campaign.summary.recommended_is_baseline} />
      </td>
      <td data-label="Fastest once" data-testid="fastest-once">
        <Found found={campaign.summary.fastest_once} />
      </td>
      <td data-label="Failures">
        <Failures campaign={campaign} />
      </td>
      <td data-label="Started">
        <div class="nowrap">
          <Ago time={campaign.created_at} />
        </div>
        <div class="muted small nowrap">{campaign.owner || "command line"}</div>
      </td>
      <td class="campaign-actions">
        <div>
          <CampaignActions campaign={campaign} onChange={onChange} quiet />
          <JsonLink path={`campaigns/${encodeURIComponent(campaign.id)}`} />
        </div>
      </td>
    </tr>
  );
}

/** What it waits for, or why it stopped; that it ended as it should needs no words here. */
function saying({ state, trouble, reason }: CampaignView): string {
  return trouble || (state === "completed" || state === "running" ? "" : reason);
}

function size({ nodes, devices }: CampaignView): string {
  return `${count(nodes)} × ${count(devices / nodes)}`;
}

/** The number, its unit and its gain below it. */
function Found({ found, baseline = false }: { found: CampaignView["summary"]["recommended"]; baseline?: boolean }) {
  if (!found) return <>{UNKNOWN}</>;
  const { value, unit } = found.objective;
  const [figure = "", ...rest] = objective(value, unit).split(" ");
  return (
    <div title={`trial ${found.trial}: ${found.plan_key}`}>
      <span class="nowrap">{figure} <span class="muted small">{rest.join(" ")}</span></span>
      <div class="small nowrap">{baseline ? "the baseline" : found.gain_over_baseline ? gain(found.gain_over_baseline.value) + (found.gain_rounds ? "" : `, ${NOT_CONFIRMED}`) : ""}</div>
    </div>
  );
}

/** Against the first limit that the budget sets; what is in flight beside it. */
function Done({ campaign: { summary, elapsed_s, state } }: { campaign: CampaignView }) {
  const { done, confirmations, in_flight, device_hours, budget } = summary;
  const [used, limit, words] =
    budget.trials !== null
      ? [done - confirmations, budget.trials, trialsOf(done, confirmations, budget.trials)]
      : budget.device_hours !== null
        ? [device_hours, budget.device_hours, `${amount(device_hours)} of ${amount(budget.device_hours)} device-h`]
        : [elapsed_s, budget.wall_time_s, `${count(done)} trials`];
  return (
    <>
      <div>{words}</div>
      <Progress done={used} total={limit} label="Budget used" />
      {MOVES[state].length > 1 && <div class="muted small">{in_flight ? `${in_flight} in flight` : "\u00a0"}</div>}
    </>
  );
}

function Failures({ campaign: { summary } }: { campaign: CampaignView }) {
  const counts = failureCounts(summary.failures);
  if (counts.length === 0) return <span class="muted">none</span>;
  return (
    <>
      {counts.map(([cause, times]) => (
        <div key={cause} class="nowrap">
          <span class={`dot tone-${cause === "oom" ? "oom" : "failed"}`} aria-hidden="true" /> {count(times)} {CAUSE_WORDS[cause] ?? cause}
        </div>
      ))}
    </>
  );
}
