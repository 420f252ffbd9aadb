/** Campaigns as rows; on a phone each row becomes a card (pages.css). */
import type { CampaignView } from "../api/types";
import { NOT_CONFIRMED } from "../campaign/data/goal";
import { CampaignActions, MOVES } from "../campaign_actions";
import { count, deviceTime, gain, objective, UNKNOWN } from "../format";
import { href } from "../router";
import { Chip, Progress, Tags } from "../ui/basics";
import { Head, TableFrame, type Sort } from "../ui/table";
import { Ago } from "../ui/time";
import { CAMPAIGN_TONES, changeWords, failureWords, trialsOf } from "../words";

/** As many as there are colours to tell apart. */
export const MOST_COMPARED = 8;

/** With it, or without it where it was there. */
export function toggled(all: readonly string[], one: string): string[] {
  return all.includes(one) ? all.filter((other) => other !== one) : [...all, one];
}

export interface TableProps {
  campaigns: CampaignView[];
  sort: Sort;
  onSort: (sort: Sort) => void;
  onChange: () => void;
  /** The ids of those that are chosen for a comparison. */
  picked: string[];
  onPick: (ids: string[]) => void;
}

export function CampaignTable({ campaigns, sort, onSort, onChange, picked, onPick }: TableProps) {
  const head = { sort, onSort };
  return (
    <TableFrame label="Campaigns" testid="campaign-table">
      <thead>
        <tr>
          <th scope="col"><span class="visually-hidden">Compare</span></th>
          <Head {...head} by="name">Campaign</Head>
          <Head {...head} by="state">State</Head>
          <Head {...head}>Model and cluster</Head>
          <Head {...head} title="The plan to use, its gain over the baseline, and in which settings it differs from that">
            Recommended
          </Head>
          <Head {...head}>Trials</Head>
          <Head {...head} by="created_at" descendingFirst>Started</Head>
          <th scope="col"><span class="visually-hidden">Actions</span></th>
        </tr>
      </thead>
      <tbody>
        {campaigns.map((campaign) => (
          <tr key={campaign.id} data-testid="campaign" data-id={campaign.id}>
            <td>
              <input
                type="checkbox"
                aria-label={`Compare ${campaign.id}`}
                checked={picked.includes(campaign.id)}
                disabled={picked.length >= MOST_COMPARED && !picked.includes(campaign.id)}
                onChange={() => onPick(toggled(picked, campaign.id))}
              />
            </td>
            <Cells campaign={campaign} />
            <td>
              <CampaignActions campaign={campaign} onChange={onChange} inMenu={MOVES.running.concat(MOVES.paused)} />
            </td>
          </tr>
        ))}
      </tbody>
    </TableFrame>
  );
}

function Cells({ campaign }: { campaign: CampaignView }) {
  const { state, trouble, reason } = campaign;
  // What it waits for, or why it stopped; that it ended as it should needs no words here.
  const words = trouble || (["completed", "running", reason].includes(state) ? "" : reason);
  return (
    <>
      <td class="campaign-name">
        <a href={href({ page: "campaign", id: campaign.id })}>{campaign.name}</a>
        <div class="muted small cut" title={campaign.id}>{campaign.id}</div>
        <Tags tags={campaign.tags} />
      </td>
      <td>
        <Chip tone={CAMPAIGN_TONES[state]}>{state}</Chip>
        <div class="small">{words}</div>
      </td>
      <td>
        <div class="cut">{campaign.model}</div>
        <div class="muted small" title={`${count(campaign.nodes)} nodes, ${count(campaign.devices)} devices`}>
          {campaign.cluster}, <span class="nowrap">{count(campaign.nodes)} × {count(campaign.devices / campaign.nodes)}</span>
        </div>
      </td>
      <td class="campaign-found" data-testid="recommended">
        <Found campaign={campaign} />
      </td>
      <td>
        <Done campaign={campaign} />
      </td>
      <td class="nowrap">
        <Ago time={campaign.created_at} />
        <div class="muted small">{campaign.owner || "command line"}</div>
      </td>
    </>
  );
}

/** One gain and one speed, what has to be known of them, and the differences from the baseline. */
export function Found({ campaign: { simulated, summary } }: { campaign: CampaignView }) {
  const found = summary.recommended;
  if (!found) return <>{UNKNOWN}</>;
  const { objective: reached, gain_over_baseline: over, gain_rounds, changes, changed_numerics } = found;
  const words = summary.recommended_is_baseline ? "the baseline" : changes.map(changeWords).join(", ");
  return (
    <>
      <div class="row" title={`trial ${found.trial}: ${found.plan_key}`}>
        {over && !summary.recommended_is_baseline && <strong>{gain(over.value)}</strong>}
        <span>{objective(reached.value, reached.unit)}</span>
        {simulated && <Chip title="No device ran these trials">simulated</Chip>}
        {over && gain_rounds === 0 && !summary.recommended_is_baseline && <Chip title={NOT_CONFIRMED}>not confirmed</Chip>}
        {changed_numerics.length > 0 && <Chip title={changed_numerics.join(", ")}>changes numerics</Chip>}
      </div>
      <div class="small cut" title={words}>{words}</div>
    </>
  );
}

/** Against the first limit that the budget sets; below it what failed, or runs. */
function Done({ campaign: { summary, elapsed_s } }: { campaign: CampaignView }) {
  const { done, confirmations, in_flight, device_hours, budget } = summary;
  const [used, limit, words] =
    budget.trials !== null
      ? [done - confirmations, budget.trials, trialsOf(done - confirmations, 0, budget.trials)]
      : budget.device_hours !== null
        ? [device_hours, budget.device_hours, `${deviceTime(device_hours)} of ${deviceTime(budget.device_hours)}`]
        : [elapsed_s, budget.wall_time_s, `${count(done)} trials`];
  const failed = failureWords(summary.failures);
  return (
    <>
      <div class="cut" title={words}>{words}</div>
      <Progress done={used} total={limit} label="Budget used" />
      <div class="small cut" title={failed}>
        {in_flight > 0 && `${in_flight} in flight${failed && ", "}`}
        {failed && <span class={`dot tone-${summary.failures["oom"] ? "oom" : "failed"}`} aria-hidden="true" />} {failed}
      </div>
    </>
  );
}
