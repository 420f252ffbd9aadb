/** The trial in a few figures. */
import type { CampaignView, TrialView } from "../api/types";
import { bytes, gain, interval, number, share, short, stepTime } from "../format";
import { Tile } from "../ui/basics";

export function Tiles({ campaign, trial }: { campaign: CampaignView; trial: TrialView }) {
  const measured = trial.measurement;
  const baseline = campaign.summary.baseline;
  const tensors = largest((measured ?? trial.partial)?.peak_memory_bytes);
  const held = largest((measured ?? trial.partial)?.peak_held_bytes);
  const limit = campaign.spec.cluster.device?.memory_bytes;
  return (
    <div class="tiles two-up" data-testid="tiles">
      <Tile
        label="Step time, median"
        testid="tile-step"
        value={stepTime(measured?.step_time_s)}
        note={measured ? `95 %: ${interval(measured.step_time_low_s, measured.step_time_high_s, stepTime)} of ${measured.step_times_s.length} steps` : "not measured"}
      />
      <Tile
        label="Against the baseline"
        testid="tile-gain"
        value={measured && baseline ? gain(baseline.step_time_s / measured.step_time_s - 1) : "–"}
        note={baseline ? `step ${stepTime(baseline.step_time_s)} in trial ${baseline.trial}` : "no baseline was measured"}
      />
      <Tile
        label="Tokens/s per device"
        testid="tile-tokens"
        value={measured ? number(measured.tokens_per_s_per_device, 4) : "–"}
        note={measured ? `${short(measured.tokens_per_s)} tokens/s over all` : undefined}
      />
      <Tile
        label="Share of the device's peak (MFU)"
        testid="tile-mfu"
        value={share(measured?.mfu)}
        note={measured?.flops_per_s_per_device != null ? `${number(measured.flops_per_s_per_device / 1e12)} TFLOP/s per device` : undefined}
      />
      <Tile
        label="Peak memory, fullest rank"
        testid="tile-memory"
        value={bytes(tensors)}
        note={held === null ? undefined : `${bytes(held)} held${limit === undefined ? "" : ` of ${bytes(limit)}`}`}
      />
    </div>
  );
}

function largest(values: readonly number[] | undefined): number | null {
  return values === undefined || values.length === 0 ? null : Math.max(...values);
}
