/** The campaign in five figures: what was fastest, by first and by second runs, what to use, and the cost. */
import type { CampaignView } from "../../api/types";
import { bareObjective, count, duration, gain, gainInterval, interval, number, objective, share } from "../../format";
import { href } from "../../router";
import { Progress, Tile } from "../../ui/basics";
import { CAUSE_WORDS, failureCounts } from "../../words";
import { setConditions } from "../data/conditions";
import { NOT_CONFIRMED } from "../data/goal";

type Found = CampaignView["summary"]["recommended"];

export function Tiles({ campaign }: { campaign: CampaignView }) {
  const { recommended, recommended_is_baseline, fastest_once, fastest_confirmed } = campaign.summary;
  return (
    <div class="tiles two-up" data-testid="tiles">
      <FoundTile campaign={campaign} found={recommended} label="Recommended" testid="tile-recommended" title="The plan to use, by the rules of the recommendation" baseline={recommended_is_baseline} />
      <FoundTile campaign={campaign} found={fastest_confirmed} label="Fastest confirmed" testid="tile-confirmed" title="The best by second runs, by fresh jobs" none="no plan has a second run" />
      <FoundTile campaign={campaign} found={fastest_once} label="Fastest once" testid="tile-once" title="The best plan by its first run alone, which luck and noise favour" />
      <Budget campaign={campaign} />
      <Failures campaign={campaign} />
    </div>
  );
}

interface FoundProps {
  campaign: CampaignView;
  found: Found;
  label: string;
  testid: string;
  title: string;
  baseline?: boolean;
  none?: string;
}

function FoundTile({ campaign, found, label, testid, title, baseline = false, none = "nothing was measured yet" }: FoundProps) {
  const made = campaign.simulated;
  if (!found) return <Tile label={label} title={title} testid={testid} simulated={made} value="–" note={none} />;
  const { value, low, high, unit } = found.objective;
  const [head, ...rest] = objective(value, unit).split(" ");
  const over = found.gain_over_baseline;
  const range = ` · 90 %: ${interval(low, high, (end) => bareObjective(end, unit))}`;
  return (
    <Tile
      label={label}
      title={title}
      testid={testid}
      simulated={made}
      value={<>{head} <span class="unit">{rest.join(" ")}</span></>}
      note={
        <>
          {baseline ? "the baseline" : over && <span title="Gain over the baseline, in speed"><strong>{gain(over.value)}</strong> ({gainInterval(over)}){found.gain_rounds === 0 && `, ${NOT_CONFIRMED}`}</span>}
          {range}
          <br />
          <a href={href({ page: "trial", id: campaign.id, number: found.trial })}>trial {found.trial}</a>: {found.plan_key}
        </>
      }
    />
  );
}

function Budget({ campaign: { summary, elapsed_s } }: { campaign: CampaignView }) {
  const { budget, confirmations: again, second_runs: [, most], in_flight, device_hours } = summary;
  const done = summary.done - again;
  const limits: [string, number, number | null, (value: number) => string][] = [
    ["device-hours", device_hours, budget.device_hours, (value) => number(value)],
    ["time", elapsed_s, budget.wall_time_s, (value) => duration(value)],
  ];
  return (
    <Tile
      label="Trials"
      testid="tile-progress"
      value={<>{count(done)}{budget.trials !== null && <span class="unit"> of {count(budget.trials)}</span>}</>}
      note={limits
        .filter(([name, , limit]) => limit !== null || name === "device-hours")
        .map(([name, used, limit, format]) => `${format(used)}${limit === null ? "" : ` of ${format(limit)}`} ${name === "time" ? "" : name}`.trim())
        .concat(Math.max(again, most) > 0 ? [`${count(again)} of up to ${count(Math.max(again, most))} second runs`] : [])
        .concat(in_flight > 0 ? [`${count(in_flight)} in flight`] : [])
        .join(" · ")}
    >
      <Progress label="Share of the budget" {...nearestLimit([[done, budget.trials], ...limits.map(([, used, limit]) => [used, limit] as const)])} />
    </Tile>
  );
}

/** The limit that will be reached first. */
function nearestLimit(limits: readonly (readonly [number, number | null])[]): { done: number; total: number | null } {
  const known = limits.filter((one): one is readonly [number, number] => one[1] !== null);
  known.sort((a, b) => b[0] / b[1] - a[0] / a[1]);
  return known[0] ? { done: known[0][0], total: known[0][1] } : { done: 0, total: null };
}

function Failures({ campaign: { summary } }: { campaign: CampaignView }) {
  const counts = failureCounts(summary.failures);
  return (
    <Tile
      label="Failed"
      testid="tile-failed"
      value={<>{count(summary.failed)}{summary.done > 0 && <span class="unit"> {share(summary.failed / summary.done, 2)}</span>}</>}
      note={
        counts.length === 0
          ? "none"
          : counts.map(([cause, times], at) => (
              <span key={cause}>
                {at > 0 && ", "}
                <button type="button" class="link" onClick={() => setConditions({ failure: { kind: "words", words: [cause] } })}>
                  {count(times)} {CAUSE_WORDS[cause] ?? cause}
                </button>
              </span>
            ))
      }
    />
  );
}
