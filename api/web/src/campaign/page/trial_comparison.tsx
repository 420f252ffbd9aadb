/** Two to five trials side by side: first the plans that differ, then speed, memory and where the time of a step went. */
import type { ComponentChildren } from "preact";
import { withQuery } from "../../api/client";
import { useResource } from "../../api/resource";
import type { CampaignView, TrialPage } from "../../api/types";
import { useFilters } from "../../filters";
import { bareObjective, bytes, gain, gainInterval, stepTime, UNKNOWN } from "../../format";
import { href } from "../../router";
import { Button, Chip } from "../../ui/basics";
import { Dialog } from "../../ui/dialog";
import { TableFrame } from "../../ui/table";
import { trialWord } from "../../words";
import { PartLegend, Stack, wordsOf } from "../charts/stack";
import { figuresOf } from "../data/figures";
import { type Goal } from "../data/goal";
import { meanParts, partNames } from "../data/parts";
import { campaignPath } from "../data/paths";
import { pick, pickedOf } from "../data/picked";
import { type Setting, settingOf } from "../data/settings";
import { type Dimension, valueOf } from "../data/values";

interface ComparisonProps {
  campaign: CampaignView;
  goal: Goal;
  rows: readonly Setting[];
  dimensions: readonly Dimension[];
  onClose: () => void;
}

/** The picked settings, each once, by the figures that the recommendation has. */
export function TrialComparison({ campaign, goal, rows, dimensions, onClose }: ComparisonProps) {
  const { baseline } = campaign.summary;
  const shown = [...new Set(pickedOf(useFilters()).flatMap((number) => settingOf(rows, number) ?? []))];
  const numbers = shown.map(({ number }) => number);
  const { data } = useResource<TrialPage>(withQuery(`${campaignPath(campaign.id)}/trials`, { number: numbers }));
  const whole = numbers.map((number) => data?.trials.find((trial) => trial.number === number));
  const profiles = whole.map((trial) => trial?.measurement?.profile ?? null);
  const told = profiles.filter((profile) => profile !== null);
  const names = partNames(told);
  const scale_s = Math.max(...told.map((profile) => profile.step_time_s), 0);
  const differ = (dimension: Dimension) => new Set(shown.map((trial) => valueOf(trial, dimension.name))).size > 1;
  const row = (head: ComponentChildren, cell: (trial: Setting, at: number) => ComponentChildren) => (
    <tr key={String(head)}>
      <th scope="row">{head}</th>
      {shown.map((trial, at) => (
        <td key={trial.number} class="num">{cell(trial, at)}</td>
      ))}
    </tr>
  );
  return (
    <Dialog title="Settings side by side" onClose={onClose} wide testid="side-by-side">
      <TableFrame label="Trials side by side" testid="trial-comparison" dense>
        <thead>
          <tr>
            <th scope="col"><span class="visually-hidden">of</span></th>
            {shown.map((trial) => (
              <th key={trial.number} scope="col" class="num">
                <a href={href({ page: "trial", id: campaign.id, number: trial.number })}>trial {trial.number}</a>{" "}
                <Button kind="quiet" aria-label={`Take trial ${trial.number} out`} disabled={shown.length < 3} onClick={() => pick(numbers.filter((one) => one !== trial.number))}>×</Button>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {dimensions.filter(differ).map(({ name, label }) => row(label, (trial) => <strong>{String(valueOf(trial, name))}</strong>))}
          {row("outcome", (trial) => <Chip tone={trialWord(trial).tone}>{trialWord(trial).word}</Chip>)}
          {row(goal.label, (trial) => bareObjective(figuresOf(trial).objective?.value, goal.unit))}
          {baseline && row("gain over the baseline", (trial) => (trial.number === baseline.trial ? "the baseline" : gain(figuresOf(trial).gain)))}
          {baseline && row("interval of the gain", (trial) => gainInterval(trial.number === baseline.trial ? null : figuresOf(trial).interval))}
          {row("second runs", (trial) => figuresOf(trial).runs || "none")}
          {row("step, mean", (trial) => stepTime(figuresOf(trial).stepTime_s))}
          {row("memory of tensors, fullest rank", (trial) => bytes(trial.peak_memory_bytes))}
          {row("left of the device", (trial) => bytes(trial.headroom_bytes))}
          {names.length > 0 && row("profiled step", (_, at) => (profiles[at] ? <Stack parts={meanParts(profiles[at]!, names)} scale_s={scale_s} /> : "not profiled"))}
          {names.map((part) => row(wordsOf(part), (_, at) => (profiles[at] ? stepTime(meanParts(profiles[at]!, [part])[0]!.time_s) : UNKNOWN)))}
        </tbody>
      </TableFrame>
      {names.length > 0 && <PartLegend names={names} waiting={told.some((profile) => profile.waiting_s.some((of) => Object.values(of).some((time) => time > 0)))} />}
    </Dialog>
  );
}
