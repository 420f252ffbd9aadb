/** Memory and own work of every rank: whether they are alike, and which one holds the others up. */
import { useCallback, useMemo } from "preact/hooks";
import uPlot from "uplot";
import type { CampaignView, MeasurementView, PartialView, ProfileView } from "../api/types";
import type { Palette } from "../campaign/charts/palette";
import { axisOf, Plot, type PlotOptions } from "../campaign/charts/plot";
import { bytes, number, stepTime } from "../format";
import { Card } from "../ui/basics";

const HEIGHT = 200;
/** Round numbers of MiB and GiB. */
const BYTE_STEPS = [2 ** 20, 2 ** 30, 2 ** 40].flatMap((unit) => [1, 2, 4, 8, 16, 32, 64, 128, 256, 512].map((times) => times * unit));

interface RanksProps {
  campaign: CampaignView;
  measured: MeasurementView | PartialView;
  profile: ProfileView | null;
}

export function Ranks({ campaign, measured, profile }: RanksProps) {
  return (
    <div class="halves">
      <RankMemory measured={measured} limit={campaign.spec.cluster.device?.memory_bytes ?? null} />
      {profile ? (
        <OwnTimes profile={profile} />
      ) : (
        <Card title="Own work by rank" testid="own-times">
          <p class="muted">The trial was not profiled.</p>
        </Card>
      )}
    </div>
  );
}

function RankMemory({ measured, limit }: { measured: RanksProps["measured"]; limit: number | null }) {
  const { peak_memory_bytes: tensors, peak_held_bytes: held } = measured;
  const ranks = Math.max(tensors.length, held.length);
  const data = useMemo<uPlot.AlignedData>(() => {
    const x = Array.from({ length: ranks }, (_, rank) => rank);
    const of = (values: readonly number[]) => x.map((rank) => values[rank] ?? null);
    return [x, of(held), of(tensors), x.map(() => limit)];
  }, [measured, limit]);
  const describe = useCallback(
    (index: number | null) => {
      const rank = index ?? fullest(held.length > 0 ? held : tensors);
      const words = [tensors[rank] !== undefined && `${bytes(tensors[rank])} of tensors`, held[rank] !== undefined && `${bytes(held[rank])} held`];
      return `${index === null ? "Fullest: rank" : "Rank"} ${rank}: ${words.filter(Boolean).join(", ")}`;
    },
    [measured],
  );
  const options = useCallback((palette: Palette) => memoryOptions(palette), []);
  return (
    <Card title="Memory by rank" testid="rank-memory">
      {ranks === 0 ? (
        <p class="muted">The job told no memory.</p>
      ) : (
        <>
          <Plot label={`Peak memory of ${ranks} ranks. ${describe(null)}${limit === null ? "" : `; the device has ${bytes(limit)}`}.`} height={HEIGHT} data={data} options={options} describe={describe} />
          <ul class="chart-legend">
            <li><span class="mark-key accent" /> tensors</li>
            <li><span class="mark-key held" /> held by the process</li>
            {limit !== null && <li><span class="mark-key limit-line" /> the device: {bytes(limit)}</li>}
          </ul>
        </>
      )}
    </Card>
  );
}

function OwnTimes({ profile }: { profile: ProfileView }) {
  const { own_time_s, straggler, stages } = profile;
  const data = useMemo<uPlot.AlignedData>(() => {
    const x = own_time_s.map((_, rank) => rank);
    const split = (slow: boolean) => x.map((rank) => ((rank === straggler?.rank) === slow ? own_time_s[rank]! : null));
    return [x, split(false), split(true)];
  }, [profile]);
  const describe = useCallback(
    (index: number | null) => {
      if (index !== null) return `Rank ${index}, stage ${stages[index]}: ${stepTime(own_time_s[index])} of own work in a step`;
      return straggler ? `Rank ${straggler.rank} takes ${number(straggler.ratio)} times as long as its peers for the same work.` : "No rank is clearly slower than its peers.";
    },
    [profile],
  );
  return (
    <Card title="Own work by rank" aside={straggler && <strong data-testid="straggler">straggler: rank {straggler.rank}</strong>} testid="own-times">
      <Plot label={`Own work of ${own_time_s.length} ranks. ${describe(null)}`} height={HEIGHT} data={data} options={ownOptions} describe={describe} />
      <ul class="chart-legend">
        <li><span class="mark-key accent" /> compute and optimizer, median of the profiled steps</li>
        {straggler && <li><span class="mark-key slow" /> straggler</li>}
      </ul>
    </Card>
  );
}

function fullest(values: readonly number[]): number {
  return values.indexOf(Math.max(...values));
}

function memoryOptions(palette: Palette): PlotOptions {
  return {
    ...barOptions(palette, bytes, 68, BYTE_STEPS),
    series: [{}, bars(palette.line, palette.edge), bars(palette.accent), { stroke: palette.oom, width: 1.5, dash: [5, 4], points: { show: false } }],
  };
}

function ownOptions(palette: Palette): PlotOptions {
  return { ...barOptions(palette, stepTime, 62), series: [{}, bars(palette.accent), bars(palette.failed)] };
}

function barOptions(palette: Palette, values: (value: number) => string, size: number, steps?: number[]): Omit<PlotOptions, "series"> {
  return {
    scales: {
      x: { time: false, range: (_, low, high) => [low - 0.6, high + 0.6] },
      y: { range: (_, _low, high) => [0, (high ?? 1) * 1.05] },
    },
    axes: [
      { ...axisOf(palette, (value) => (Number.isInteger(value) ? String(value) : ""), 24), grid: { show: false }, incrs: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] },
      { ...axisOf(palette, values, size), ...(steps && { incrs: steps }) },
    ],
  };
}

function bars(fill: string, stroke = fill): uPlot.Series {
  return { fill, stroke, width: 1, paths: uPlot.paths.bars!({ size: [0.7, 60] }), points: { show: false } };
}
