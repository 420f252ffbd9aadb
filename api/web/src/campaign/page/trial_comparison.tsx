/** Two to five trials side by side: first the plans that differ, then speed, memory and where the time of a step went. */
import type { ComponentChildren } from "preact";
import { withQuery } from "../../api/client";
import { useResource } from "../../api/resource";
import type { CampaignView, TrialPage } from "../../api/types";
import { useFilters } from "../../filters";
import { bareObjective, bytes, gain, gainInterval, stepTime, UNKNOWN } from "../../format";
import { href } from "../../router";
import { Button, Chip } from "../../ui/basics";
import { DataTable } from "../../ui/data_table";
import { Dialog } from "../../ui/dialog";
import { trialWord } from "../../words";
import { PartLegend, Stack } from "../charts/stack";
import { figuresOf } from "../data/figures";
import { type Goal } from "../data/goal";
import { meanParts, partNames, partWords } from "../data/parts";
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
  const profiles = numbers.map((number) => data?.trials.find((trial) => trial.number === number)?.measurement?.profile ?? null);
  const known = profiles.filter((profile) => profile !== null);
  const names = partNames(known);
  const scale_s = Math.max(...known.map((profile) => profile.step_time_s), 0);
  const means = profiles.map((profile) => profile && meanParts(profile, names));
  const row = (head: string, cell: (trial: Setting, at: number) => ComponentChildren) => [head, ...shown.map(cell)];
  const head = ({ number }: Setting) => (
    <>
      <a href={href({ page: "trial", id: campaign.id, number })}>trial {number}</a>{" "}
      <Button kind="quiet" aria-label={`Take trial ${number} out`} disabled={shown.length < 3} onClick={() => pick(numbers.filter((one) => one !== number))}>×</Button>
    </>
  );
  const differing = dimensions.filter(({ name }) => new Set(shown.map((trial) => valueOf(trial, name))).size > 1);
  const gains = baseline
    ? [
        row("gain over the baseline", (trial) => (trial.number === baseline.trial ? "the baseline" : gain(figuresOf(trial).gain))),
        row("interval of the gain", (trial) => gainInterval(trial.number === baseline.trial ? null : figuresOf(trial).interval)),
      ]
    : [];
  const parts = names.map((part, place) => row(partWords(part), (_, at) => (means[at] ? stepTime(means[at][place]!.time_s) : UNKNOWN)));
  return (
    <Dialog title="Settings side by side" onClose={onClose} wide>
      <DataTable
        label="Trials side by side"
        testid="trial-comparison"
        numeric
        heads={[<span class="visually-hidden">of</span>, ...shown.map(head)]}
        rows={[
          ...differing.map(({ name, label }) => row(label, (trial) => <strong>{String(valueOf(trial, name))}</strong>)),
          row("outcome", (trial) => <Chip tone={trialWord(trial).tone}>{trialWord(trial).word}</Chip>),
          row(goal.label, (trial) => bareObjective(figuresOf(trial).objective?.value, goal.unit)),
          ...gains,
          row("second runs", (trial) => figuresOf(trial).runs || "none"),
          row("step, mean", (trial) => stepTime(figuresOf(trial).stepTime_s)),
          row("memory of tensors, fullest rank", (trial) => bytes(trial.peak_memory_bytes)),
          row("left of the device", (trial) => bytes(trial.headroom_bytes)),
          ...(names.length > 0 ? [row("profiled step", (_, at) => (means[at] ? <Stack parts={means[at]} scale_s={scale_s} /> : "not profiled"))] : []),
          ...parts,
        ]}
      />
      {names.length > 0 && <PartLegend names={names} waiting={means.flat().some((one) => one && one.waiting_s > 0)} />}
    </Dialog>
  );
}
