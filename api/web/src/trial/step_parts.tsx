/** Where the time of a step went: as a mean, and rank by rank. */
import { useState } from "preact/hooks";
import type { ProfileView } from "../api/types";
import { meanParts, partNames, partsOfRank, PHASE_WORDS } from "../campaign/data/parts";
import { PartLegend, Stack } from "../campaign/charts/stack";
import { share, stepTime } from "../format";
import { Button, Card } from "../ui/basics";

const FIRST_RANKS = 16;

export function StepParts({ profile }: { profile: ProfileView }) {
  const [all, showAll] = useState(false);
  const names = partNames([profile]);
  const ofRanks = !names.some((name) => name in PHASE_WORDS);
  const mean = meanParts(profile, names);
  const waiting_s = mean.reduce((sum, one) => sum + one.waiting_s, 0);
  const ranks = profile.parts_s.length;
  const exposed_s = profile.exposed_s.reduce((sum, one) => sum + one, 0) / ranks;
  const scale_s = Math.max(profile.step_time_s, ...profile.parts_s.map((parts) => Object.values(parts).reduce((sum, one) => sum + one, 0)));
  return (
    <Card title={<>Time by part <span class="muted">of a {ofRanks ? "profiled" : "mean"} step of {stepTime(profile.step_time_s)}</span></>} testid="step-parts">
      <div class="rank-parts">
        <span>mean</span>
        <Stack parts={mean} scale_s={scale_s} />
        {profile.parts_s.slice(0, ofRanks ? (all ? ranks : FIRST_RANKS) : 0).map((_, rank) => [
          <span key={`rank ${rank}`} class={rank === profile.straggler?.rank ? "slow" : undefined}>
            rank {rank}
            {profile.stages.some((stage) => stage > 0) && <span class="muted"> · stage {profile.stages[rank]}</span>}
          </span>,
          <Stack key={rank} parts={partsOfRank(profile, rank, names)} scale_s={scale_s} />,
        ])}
      </div>
      {ranks > FIRST_RANKS && !all && <Button kind="quiet" onClick={() => showAll(true)}>Show all {ranks} ranks</Button>}
      <PartLegend names={names} waiting={waiting_s > 0} />
      {profile.serialised && (
        <p class="small muted">Nothing overlaps in a profiled step. Of a timed one at least {stepTime(exposed_s)} was communication that no work hid, or idle time.</p>
      )}
      {waiting_s > 0 && (
        <p class="small muted">Of a mean step, {stepTime(waiting_s)} ({share(waiting_s / profile.step_time_s, 2)}) was waiting for the last peer to arrive.</p>
      )}
    </Card>
  );
}
