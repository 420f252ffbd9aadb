/** Time by part of any two measured settings, one above the other on one scale. */
import { useEffect, useState } from "preact/hooks";
import { useResource } from "../../api/resource";
import type { CampaignView, TrialView } from "../../api/types";
import { gain, stepTime } from "../../format";
import { Card } from "../../ui/basics";
import { LoadingState } from "../../ui/states";
import { meanParts, partNames } from "../data/parts";
import { PartLegend, Stack, wordsOf } from "./stack";

interface SideBySideProps {
  campaign: CampaignView;
}

/** The best trial and the baseline, until others are chosen. */
export function SideBySide({ campaign }: SideBySideProps) {
  const { best, baseline } = campaign.summary;
  const [chosen, choose] = useState<[number | null, number | null]>([null, null]);
  const first = chosen[0] ?? best?.trial ?? null;
  const second = chosen[1] ?? (baseline && baseline.trial !== best?.trial ? baseline.trial : null);
  const [one, other] = [useTrial(campaign.id, first), useTrial(campaign.id, second)];
  if (first === null) return null;
  const profiles = [one, other].flatMap((trial) => trial.data?.measurement?.profile ?? []);
  const names = partNames(profiles);
  const scale_s = Math.max(...profiles.map((profile) => profile.step_time_s), 0);
  return (
    <Card title="Time by part, side by side" testid="side-by-side">
      <div class="pair">
        <TrialStack label="Trial" number={first} trial={one} names={names} scale_s={scale_s} onChoose={(number) => choose([number, chosen[1]])} />
        <TrialStack label="Against trial" number={second} trial={other} names={names} scale_s={scale_s} onChoose={(number) => choose([chosen[0], number])} />
      </div>
      {names.length > 0 && <PartLegend names={names} waiting={profiles.some((profile) => profile.waiting_s.some((row) => Object.values(row).some((time) => time > 0)))} />}
      {profiles.length === 2 && <PartTable names={names} one={one.data!} other={other.data!} />}
    </Card>
  );
}

type Read = ReturnType<typeof useTrial>;

function useTrial(campaign: string, number: number | null) {
  return useResource<TrialView>(number === null ? null : `campaigns/${encodeURIComponent(campaign)}/trials/${number}`);
}

interface TrialStackProps {
  label: string;
  number: number | null;
  trial: Read;
  names: readonly string[];
  scale_s: number;
  onChoose: (number: number) => void;
}

function TrialStack({ label, number, trial, names, scale_s, onChoose }: TrialStackProps) {
  const [typed, type] = useState("");
  useEffect(() => type(number === null ? "" : String(number)), [number]);
  const profile = trial.data?.measurement?.profile;
  return (
    <div class="pair-one">
      <label class="row small">
        {label}
        <input
          type="number"
          min={0}
          value={typed}
          onInput={(event) => type(event.currentTarget.value)}
          onChange={(event) => /^\d+$/.test(event.currentTarget.value) && onChoose(Number(event.currentTarget.value))}
        />
        <span class="muted">{trial.data?.plan_key ?? ""}</span>
      </label>
      {trial.loading ? (
        <LoadingState lines={1} height={26} />
      ) : profile ? (
        <Stack parts={meanParts(profile, names)} scale_s={scale_s} />
      ) : (
        <p class="muted step-none">{whyNone(number, trial)}</p>
      )}
    </div>
  );
}

function whyNone(number: number | null, { data, problem }: Read): string {
  if (number === null) return "Choose a trial.";
  if (problem) return problem.message;
  return data?.measurement ? `Trial ${number} was not profiled.` : `Trial ${number} has no measurement.`;
}

function PartTable({ names, one, other }: { names: readonly string[]; one: TrialView; other: TrialView }) {
  const sides = [one, other].map((trial) => meanParts(trial.measurement!.profile!, names));
  const steps = [one, other].map((trial) => trial.measurement!.profile!.step_time_s);
  return (
    <div class="table-frame">
      <table class="dense">
        <thead>
          <tr>
            <th scope="col">Mean over the ranks</th>
            <th scope="col" class="num">#{one.number}</th>
            <th scope="col" class="num">#{other.number}</th>
            <th scope="col" class="num">difference</th>
          </tr>
        </thead>
        <tbody>
          {names.map((part, at) => (
            <tr key={part}>
              <th scope="row">{wordsOf(part)}</th>
              <td class="num">{stepTime(sides[0]![at]!.time_s)}</td>
              <td class="num">{stepTime(sides[1]![at]!.time_s)}</td>
              <td class="num">{signed(sides[0]![at]!.time_s - sides[1]![at]!.time_s)}</td>
            </tr>
          ))}
          <tr>
            <th scope="row">step, profiled</th>
            <td class="num">{stepTime(steps[0])}</td>
            <td class="num">{stepTime(steps[1])}</td>
            <td class="num">{gain(steps[0]! / steps[1]! - 1)}</td>
          </tr>
        </tbody>
      </table>
    </div>
  );
}

function signed(seconds: number): string {
  return seconds > 0 ? `+${stepTime(seconds)}` : stepTime(seconds);
}
