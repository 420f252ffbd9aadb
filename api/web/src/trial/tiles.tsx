/** The trial in a few figures. */
import { withQuery } from "../api/client";
import { useResource } from "../api/resource";
import type { CampaignView, TrialBriefPage, TrialView } from "../api/types";
import { goalOf, isAgain, NOT_CONFIRMED, worded } from "../campaign/data/goal";
import { bareObjective, bytes, gain, interval, number, share, short, stepTime } from "../format";
import { Tile } from "../ui/basics";

export function Tiles({ campaign, trial }: { campaign: CampaignView; trial: TrialView }) {
  const made = campaign.simulated;
  const goal = goalOf(campaign);
  const baseline = campaign.summary.baseline;
  const brief = useResource<TrialBriefPage>(trial.measurement && withQuery(`campaigns/${encodeURIComponent(campaign.id)}/trials`, { view: "brief", number: [trial.number] }));
  const own = brief.data?.trials[0];
  const measured = trial.measurement;
  const tensors = largest((measured ?? trial.partial)?.peak_memory_bytes);
  const held = largest((measured ?? trial.partial)?.peak_held_bytes);
  const limit = campaign.spec.cluster.device?.memory_bytes;
  return (
    <div class="tiles two-up" data-testid="tiles">
      <Tile
        label="Step time, mean"
        testid="tile-step"
        simulated={made}
        value={stepTime(measured?.step_time_s)}
        note={measured ? `95 %: ${interval(measured.step_time_low_s, measured.step_time_high_s, stepTime)}, of ${measured.step_times_s.length} steps of one run` : "not measured"}
      />
      <Tile
        label="Against the baseline"
        testid="tile-gain"
        simulated={made}
        value={baseline?.trial === trial.number ? "the baseline" : gain(own?.gain_over_baseline)}
        note={baseline ? `${goal.label}: ${bareObjective(own?.objective?.value, goal.unit)}; ${isAgain(trial) ? "in the same round" : NOT_CONFIRMED}` : "no baseline was measured"}
      />
      <Tile
        label={worded(goal, "Tokens/s per device")}
        testid="tile-tokens"
        simulated={made}
        value={measured ? number(measured.tokens_per_s_per_device, 4) : "–"}
        note={measured ? `${short(measured.tokens_per_s)} ${worded(goal, "tokens/s")} over all` : undefined}
      />
      <Tile
        label="Share of the device's peak (MFU)"
        testid="tile-mfu"
        simulated={made}
        value={share(measured?.mfu)}
        note={measured?.flops_per_s_per_device != null ? `${number(measured.flops_per_s_per_device / 1e12)} TFLOP/s per device` : undefined}
      />
      <Tile
        label="Peak memory, fullest rank"
        testid="tile-memory"
        simulated={made}
        value={bytes(tensors)}
        note={held === null ? undefined : `${bytes(held)} held${limit === undefined ? "" : ` of ${bytes(limit)}`}`}
      />
    </div>
  );
}

function largest(values: readonly number[] | undefined): number | null {
  return values === undefined || values.length === 0 ? null : Math.max(...values);
}
