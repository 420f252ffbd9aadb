/** Two to five trials side by side: first the plans that differ, then speed, memory and where the time of a step went. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { useResource } from "../../api/resource";
import type { CampaignView, TrialBrief, TrialView } from "../../api/types";
import { useFilters } from "../../filters";
import { bareObjective, bytes, gain, stepTime, UNKNOWN } from "../../format";
import { href } from "../../router";
import { Button, Card, Chip } from "../../ui/basics";
import { TableFrame } from "../../ui/table";
import { trialWord } from "../../words";
import { PartLegend, Stack, wordsOf } from "../charts/stack";
import { type Goal } from "../data/goal";
import { meanParts, partNames } from "../data/parts";
import { MOST, pick, pickedOf, togglePick } from "../data/picked";
import { type Dimension, valueOf } from "../data/values";

interface ComparisonProps {
  campaign: CampaignView;
  goal: Goal;
  trials: readonly TrialBrief[];
  dimensions: readonly Dimension[];
}

/** The recommended plan and the baseline, until others are picked. */
export function TrialComparison({ campaign, goal, trials, dimensions }: ComparisonProps) {
  const { recommended, fastest_once, baseline } = campaign.summary;
  const asked = pickedOf(useFilters());
  const first = (recommended ?? fastest_once)?.trial;
  const second = baseline?.trial === first ? fastest_once?.trial : baseline?.trial;
  const numbers = asked.length > 0 ? asked : [...new Set([first, second])].filter((one) => one !== undefined);
  const shown = numbers.flatMap((number) => trials.find((trial) => trial.number === number) ?? []);
  const whole = useTrials(campaign.id, numbers);
  const profiles = whole.map((trial) => trial?.measurement?.profile ?? null);
  const told = profiles.filter((profile) => profile !== null);
  const names = partNames(told);
  const scale_s = Math.max(...told.map((profile) => profile.step_time_s), 0);
  const differ = (dimension: Dimension) => new Set(shown.map((trial) => valueOf(trial, dimension.name))).size > 1;
  const measured = whole.map((trial) => trial?.measurement ?? trial?.partial);
  const row = (head: ComponentChildren, cell: (trial: TrialBrief, at: number) => ComponentChildren) => (
    <tr key={String(head)}>
      <th scope="row">{head}</th>
      {shown.map((trial, at) => (
        <td key={trial.number} class="num">{cell(trial, at)}</td>
      ))}
    </tr>
  );
  return (
    <Card title="Trials side by side" testid="side-by-side" aside={<Adder numbers={numbers} trials={trials} />}>
      {shown.length === 0 ? (
        <p class="muted">Name two to five trials here, or tick them in the table below.</p>
      ) : (
        <>
          <TableFrame label="Trials side by side" testid="trial-comparison" dense>
            <thead>
              <tr>
                <th scope="col"><span class="visually-hidden">of</span></th>
                {shown.map((trial) => (
                  <th key={trial.number} scope="col" class="num">
                    <a href={href({ page: "trial", id: campaign.id, number: trial.number })}>trial {trial.number}</a>{" "}
                    <Button kind="quiet" aria-label={`Take trial ${trial.number} out`} onClick={() => pick(numbers.filter((one) => one !== trial.number))}>×</Button>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {dimensions.filter(differ).map(({ name, label }) => row(label, (trial) => <strong>{String(valueOf(trial, name))}</strong>))}
              {row("outcome", (trial) => <Chip tone={trialWord(trial).tone}>{trialWord(trial).word}</Chip>)}
              {row(goal.label, (trial) => bareObjective(trial.objective?.value, goal.unit))}
              {baseline && row("gain over the baseline, of the same round", (trial) => (trial.origin === "baseline" ? UNKNOWN : gain(trial.gain_over_baseline)))}
              {row("step, mean", (trial) => stepTime(trial.step_time_s))}
              {row("memory of tensors, fullest rank", (trial) => bytes(trial.peak_memory_bytes))}
              {row("held by the process", (_, at) => bytes(measured[at]?.peak_held_bytes.length ? Math.max(...measured[at]!.peak_held_bytes) : null))}
              {row("left of the device", (trial) => bytes(trial.headroom_bytes))}
              {names.length > 0 && row("profiled step", (_, at) => (profiles[at] ? <Stack parts={meanParts(profiles[at]!, names)} scale_s={scale_s} /> : "not profiled"))}
              {names.map((part) => row(wordsOf(part), (_, at) => (profiles[at] ? stepTime(meanParts(profiles[at]!, [part])[0]!.time_s) : UNKNOWN)))}
            </tbody>
          </TableFrame>
          {names.length > 0 && <PartLegend names={names} waiting={told.some((profile) => profile.waiting_s.some((of) => Object.values(of).some((time) => time > 0)))} />}
        </>
      )}
    </Card>
  );
}

/** The whole trials of these numbers, as far as they have come. */
function useTrials(campaign: string, numbers: readonly number[]): (TrialView | undefined)[] {
  const slots = Array.from({ length: MOST }, (_, at) => numbers[at] ?? null);
  const path = `campaigns/${encodeURIComponent(campaign)}/trials/`;
  // Always as many hooks, as the rule of hooks wants.
  const read = slots.map((number) => useResource<TrialView>(number === null ? null : path + number));
  return numbers.map((_, at) => read[at]?.data);
}

function Adder({ numbers, trials }: { numbers: readonly number[]; trials: readonly TrialBrief[] }) {
  const [typed, type] = useState("");
  const number = /^\d+$/.test(typed) ? Number(typed) : null;
  const fits = number !== null && !numbers.includes(number) && trials.some((trial) => trial.number === number) && numbers.length < MOST;
  return (
    <form
      class="row"
      onSubmit={(event) => {
        event.preventDefault();
        if (!fits) return;
        pick([...numbers, number]);
        type("");
      }}
    >
      <input class="short" inputMode="numeric" aria-label="Number of a trial to add" placeholder="trial" value={typed} onInput={(event) => type(event.currentTarget.value.trim())} />
      <Button type="submit" disabled={!fits}>Add</Button>
    </form>
  );
}

/** In a row of the table. */
export function Pick({ number }: { number: number }) {
  const picked = pickedOf(useFilters());
  return (
    <input
      type="checkbox"
      aria-label={`Lay trial ${number} beside others`}
      checked={picked.includes(number)}
      disabled={picked.length >= MOST && !picked.includes(number)}
      onChange={() => togglePick(number)}
    />
  );
}
