/** The setting of a trial in a few figures: by all its runs, as the recommendation has them, and by this run below. */
import type { CampaignView, TrialBrief, TrialView } from "../api/types";
import { figuresOf } from "../campaign/data/figures";
import { goalOf, isAgain, NOT_CONFIRMED } from "../campaign/data/goal";
import { useNeed } from "../campaign/data/need";
import { bareObjective, bytes, counted, gain, gainInterval, interval, number, probability, share, stepTime } from "../format";
import { Tile } from "../ui/basics";

/** own: the trial in numbers. */
export function Tiles({ campaign, trial, own }: { campaign: CampaignView; trial: TrialView; own: TrialBrief | undefined }) {
  const { measurement: measured, partial } = trial;
  const limit = campaign.spec.cluster.device?.memory_bytes;
  const tile = { simulated: campaign.simulated };
  const tensors = largest((measured ?? partial)?.peak_memory_bytes);
  const held = largest((measured ?? partial)?.peak_held_bytes);
  const of = limit === undefined ? "" : ` of ${bytes(limit)}`;
  const memory = tensors !== null && <Tile {...tile} label="Peak memory, fullest rank" value={bytes(tensors)} note={held === null ? of : `${bytes(held)} held${of}`} />;
  const need = useNeed(trial.verdict === "oom" ? campaign.id : null, trial.plan);
  if (!measured || !own) {
    const { peak_bytes: peak, p_fits } = need ?? {};
    const needs = peak && <Tile label="Predicted memory, fullest rank" testid="tile-predicted" value={<>{bytes(peak.value)} <span class="unit">({interval(peak.low, peak.high, bytes)}){of}</span></>} note={`fits with ${probability(p_fits)}`} />;
    return memory || needs ? <div class="tiles two-up" data-testid="tiles">{needs}{memory}</div> : null;
  }
  const goal = goalOf(campaign);
  const figures = figuresOf(own);
  const speed = (value: number | undefined) => bareObjective(value, goal.unit);
  const same = speed(own.objective?.value) === speed(figures.objective?.value);
  const { low, high } = figures.objective ?? {};
  const base = campaign.summary.baseline?.trial === (trial.setting?.trial ?? trial.number);
  return (
    <div class="tiles two-up" data-testid="tiles">
      <Tile {...tile} label={goal.label} testid="tile-objective" value={speed(figures.objective?.value)} note={<>95 %: {interval(low, high, (end) => speed(end ?? undefined))}, {figures.runs > 0 ? counted(figures.runs, "second run") : "one run"}{!same && <><br />this run: {speed(own.objective?.value)}</>}</>} />
      {campaign.summary.baseline && (
        <Tile
          {...tile}
          label="Against the baseline"
          testid="tile-gain"
          value={base ? "the baseline" : gain(figures.gain)}
          note={base ? undefined : (
            <>
              {figures.rounds > 0 ? `${gainInterval(figures.interval)}, ${counted(figures.rounds, "round")}` : NOT_CONFIRMED}
              {isAgain(trial) && <><br />this run: {gain(own.gain_over_baseline)} in the same round</>}
            </>
          )}
        />
      )}
      <Tile {...tile} label="Step time, mean" testid="tile-step" value={stepTime(figures.stepTime_s)} note={stepTime(figures.stepTime_s) === stepTime(measured.step_time_s) ? `of ${measured.step_times_s.length} steps of one run` : `this run: ${stepTime(measured.step_time_s)}`} />
      {measured.mfu !== null && <Tile {...tile} label="Share of the device's peak (MFU)" value={share(measured.mfu)} note={`${number(measured.flops_per_s_per_device! / 1e12)} TFLOP/s per device`} />}
      {memory}
    </div>
  );
}

export function largest(values: readonly number[] | undefined): number | null {
  return values === undefined || values.length === 0 ? null : Math.max(...values);
}
