/** Memory and own work of every rank: whether they are alike, and which one holds the others up. */
import type { ComponentChildren } from "preact";
import type { CampaignView, TrialView } from "../api/types";
import { type Axis, byteNumbers, levels, numbers } from "../campaign/charts/axes";
import { Chart, type Frame } from "../campaign/charts/chart";
import { box } from "../campaign/charts/marks";
import { toPixel } from "../campaign/charts/scales";
import { bytes, number, stepTime } from "../format";
import { Card } from "../ui/basics";

const HEIGHT = 200;
/** Of the room of a rank, what its bar fills, and the widest that one is. */
const FILLED = 0.7;
const WIDEST = 60;

export function Ranks({ campaign, trial: { measurement, partial } }: { campaign: CampaignView; trial: TrialView }) {
  const limit = campaign.spec.cluster.device?.memory_bytes ?? null;
  const { peak_memory_bytes: tensors, peak_held_bytes: held } = (measurement ?? partial)!;
  const profile = measurement?.profile;
  const straggler = profile?.straggler;
  const fullest = held.length > 0 ? held : tensors;
  const memoryOf = (index: number | null) => {
    const rank = index ?? fullest.indexOf(Math.max(...fullest));
    const words = [tensors[rank] !== undefined && `${bytes(tensors[rank])} of tensors`, held[rank] !== undefined && `${bytes(held[rank])} held`];
    return `${index === null ? "Fullest: rank" : "Rank"} ${rank}: ${words.filter(Boolean).join(", ")}`;
  };
  const ownOf = (index: number | null) => {
    if (index !== null) return `Rank ${index}, stage ${profile!.stages[index]}: ${stepTime(profile!.own_time_s[index])} of own work in a step`;
    return straggler ? `Rank ${straggler.rank} takes ${number(straggler.ratio)} times as long as its peers for the same work.` : "No rank is clearly slower than its peers.";
  };
  const split = (frame: Frame, slow: boolean) => bars(profile!.own_time_s.map((time, rank) => ((rank === straggler?.rank) === slow ? time : 0)), frame);
  return (
    <div class="halves">
      {tensors.length + held.length > 0 && (
        <Card title="Memory by rank" testid="rank-memory">
          <RankChart label={`Peak memory.${limit === null ? "" : ` The device has ${bytes(limit)}.`}`} values={fullest} y={byteNumbers([...tensors, ...held, limit ?? 0], { fromZero: true, room: 0.05 })} describe={memoryOf}>
            {(frame) => (
              <>
                <path class="bars-held" d={bars(held, frame)} />
                <path class="bars-own" d={bars(tensors, frame)} />
                {limit !== null && <path class="limit" d={`M${frame.left} ${toPixel(frame.y, limit)}H${frame.right}`} />}
              </>
            )}
          </RankChart>
          <ul class="chart-legend">
            <li><span class="mark-key bars-own" /> tensors</li>
            <li><span class="mark-key bars-held" /> held by the process</li>
            {limit !== null && <li><span class="mark-key limit" /> the device: {bytes(limit)}</li>}
          </ul>
        </Card>
      )}
      {profile && (
        <Card title="Own work by rank" aside={straggler && <strong>straggler: rank {straggler.rank}</strong>} testid="own-times">
          <RankChart label="Own work." values={profile.own_time_s} y={numbers(profile.own_time_s, { format: stepTime, fromZero: true, room: 0.05 })} describe={ownOf}>
            {(frame) => (
              <>
                <path class="bars-own" d={split(frame, false)} />
                <path class="bars-slow" d={split(frame, true)} />
              </>
            )}
          </RankChart>
          <ul class="chart-legend">
            <li><span class="mark-key bars-own" /> compute and optimizer, median of the profiled steps</li>
            {straggler && <li><span class="mark-key bars-slow" /> straggler</li>}
          </ul>
        </Card>
      )}
    </div>
  );
}

interface RankChartProps {
  label: string;
  values: readonly number[];
  y: Axis;
  describe: (rank: number | null) => string;
  children: (frame: Frame) => ComponentChildren;
}

function RankChart({ label, values, y, describe, children }: RankChartProps) {
  return (
    <Chart label={`${label} ${values.length} ranks. ${describe(null)}`} height={HEIGHT} x={levels([...values.keys()], "rank")} y={y} points={[...values.entries()]} describe={describe}>
      {children}
    </Chart>
  );
}

/** One bar from 0 for each rank that has a value. */
function bars(values: readonly number[], { x, y, bottom }: Frame): string {
  const width = Math.min(WIDEST, FILLED * (toPixel(x, 1) - toPixel(x, 0)));
  return values.map((value, rank) => (value > 0 ? box(toPixel(x, rank) - width / 2, toPixel(y, value), width, bottom - toPixel(y, value)) : "")).join("");
}
