/** The campaign in five figures. */
import type { CampaignView, ObjectiveView, TrialBrief } from "../../api/types";
import { bareObjective, count, duration, gain, gainInterval, interval, number, objective, share, stepTime } from "../../format";
import { href } from "../../router";
import { Progress, Tile } from "../../ui/basics";
import { CAUSE_WORDS, failureCounts } from "../../words";
import { setConditions } from "../data/conditions";

interface TilesProps {
  campaign: CampaignView;
  best: TrialBrief | undefined;
}

export function Tiles({ campaign, best }: TilesProps) {
  const { summary } = campaign;
  const found = summary.best;
  const link = found && href({ page: "trial", id: campaign.id, number: found.trial });
  return (
    <div class="tiles two-up" data-testid="tiles">
      <Tile
        label="Best"
        testid="tile-best"
        value={found ? <Value value={found.objective.value} unit={found.objective.unit} /> : "–"}
        note={found ? `95 %: ${intervalOf(found.objective)} · step ${stepTime(found.step_time_s)}` : "nothing was measured yet"}
      />
      <Tile
        label="Gain over the baseline"
        testid="tile-gain"
        value={gain(found?.gain_over_baseline?.value)}
        note={found && found.trial === summary.baseline?.trial ? "the baseline is the best" : found?.gain_over_baseline ? gainInterval(found.gain_over_baseline) : summary.baseline === null ? "no baseline was measured" : ""}
      />
      <Tile
        label="Best setting"
        testid="tile-setting"
        value={<span class="setting">{found ? <a href={link!}>{found.plan_key}</a> : "–"}</span>}
        note={found ? `trial ${found.trial}${best?.number === found.trial && best.attempts > 1 ? `, ${best.attempts} attempts` : ""}` : undefined}
      />
      <Budget campaign={campaign} />
      <Failures campaign={campaign} />
    </div>
  );
}

/** The number large and its unit small. */
function Value({ value, unit }: { value: number; unit: string }) {
  const [head, ...rest] = objective(value, unit).split(" ");
  return <>{head} <span class="unit">{rest.join(" ")}</span></>;
}

function intervalOf({ low, high, unit }: ObjectiveView): string {
  return interval(low, high, (value) => bareObjective(value, unit));
}

function Budget({ campaign: { summary, elapsed_s } }: { campaign: CampaignView }) {
  const { budget, confirmations: again, in_flight, device_hours } = summary;
  const done = summary.done - again;
  const limits: [string, number, number | null, (value: number) => string][] = [
    ["device-hours", device_hours, budget.device_hours, (value) => number(value)],
    ["time", elapsed_s, budget.wall_time_s, (value) => duration(value)],
  ];
  return (
    <Tile
      label="Trials"
      testid="tile-progress"
      value={<>{count(done)}{budget.trials !== null && <span class="muted"> of {count(budget.trials)}</span>}</>}
      note={limits
        .filter(([name, , limit]) => limit !== null || name === "device-hours")
        .map(([name, used, limit, format]) => `${format(used)}${limit === null ? "" : ` of ${format(limit)}`} ${name === "time" ? "" : name}`.trim())
        .concat(again > 0 ? [`${again} measured again`] : [])
        .concat(in_flight > 0 ? [`${in_flight} in flight`] : [])
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
      value={<>{count(summary.failed)}{summary.done > 0 && <span class="muted"> {share(summary.failed / summary.done, 2)}</span>}</>}
      note={
        counts.length === 0
          ? "none"
          : counts.map(([cause, times], at) => (
              <span key={cause}>
                {at > 0 && ", "}
                <button type="button" class="link" onClick={() => setConditions({ failure: { kind: "words", words: [cause] } })}>
                  {times} {CAUSE_WORDS[cause] ?? cause}
                </button>
              </span>
            ))
      }
    />
  );
}
