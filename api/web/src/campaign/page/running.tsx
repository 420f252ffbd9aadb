/** How far a campaign is: what is done of its limits, what runs or why it waits, what is left to gain. */
import { useMemo } from "preact/hooks";
import type { CampaignView, TrialBrief } from "../../api/types";
import { count, deviceTime, duration, gain, interval, probability, stepTime } from "../../format";
import { Chip, Progress, TrialLink } from "../../ui/basics";
import { Ago, useNow } from "../../ui/time";
import { trialWord, waitWords } from "../../words";

const MOST = 12;

export function RunStrip({ campaign, trials }: { campaign: CampaignView; trials: readonly TrialBrief[] }) {
  const { budget, done, confirmations: again, second_runs: [, most], device_hours } = campaign.summary;
  const active = trials.filter((trial) => trial.state !== "done");
  // The service says it with every reading of the campaign; between two of them it goes on here.
  const read = useMemo(() => Date.now(), [campaign]);
  const since_s = Math.max(0, useNow() - read) / 1000;
  const elapsed_s = campaign.elapsed_s + (campaign.state === "running" ? since_s : 0);
  const limits = [[done - again, budget.trials], [device_hours, budget.device_hours], [elapsed_s, budget.wall_time_s]] as const;
  const nearest = limits.filter(([, limit]) => limit !== null).sort((a, b) => b[0] / b[1]! - a[0] / a[1]!)[0];
  const left = (words: (value: number) => string, used: number, limit: number | null) => limit !== null && `${words(Math.max(0, limit - used))} left`;
  const facts = [
    budget.trials === null ? `${count(done - again)} trials` : `${count(done - again)} of ${count(budget.trials)} trials`,
    most > 0 && `${count(again)} of up to ${count(Math.max(again, most))} second runs`,
    left(deviceTime, device_hours, budget.device_hours),
    left(duration, elapsed_s, budget.wall_time_s),
    campaign.chance_left !== null && `a better setting is left with a probability of ${probability(campaign.chance_left)}`,
  ];
  return (
    <section class="pile stretch" aria-label="Progress" data-testid="run-strip">
      <Progress label="Share of the budget" done={nearest?.[0] ?? 0} total={nearest?.[1] ?? null} />
      <p class="row facts small">{facts.filter(Boolean).map((fact) => <span key={fact}>{fact}</span>)}</p>
      <details class="small" data-testid="running">
        <summary>{active.length > 0 && !campaign.trouble ? `${count(active.length)} in flight` : idleWords(campaign)}</summary>
        <ul class="list">
          {active.slice(0, MOST).map((trial) => <RunningTrial key={trial.number} campaign={campaign.id} trial={trial} />)}
          {active.length > MOST && <li class="muted">and {active.length - MOST} more</li>}
        </ul>
      </details>
    </section>
  );
}

function idleWords({ state, trouble }: CampaignView): string {
  if (trouble !== "") return `waits: ${trouble}`;
  return state === "running" ? "the search is choosing" : `the campaign is ${state}`;
}

function RunningTrial({ campaign, trial }: { campaign: string; trial: TrialBrief }) {
  const { word, tone } = trialWord(trial);
  return (
    <li>
      <div class="row">
        <TrialLink campaign={campaign} number={trial.number} />
        <Chip tone={tone}>{word}</Chip>
        <code>{trial.plan_key}</code>
        <span class="muted"><Ago time={trial.started_at ?? trial.submitted_at ?? trial.planned_at} /></span>
      </div>
      <p class="muted">{trial.started_at === null && `${waitWords(trial)} `}{whyChosen(trial)}</p>
    </li>
  );
}

export function whyChosen({ origin, expectation: said }: Pick<TrialBrief, "origin" | "expectation">): string {
  if (origin === "baseline") return "The present plan: what every other is compared with.";
  if (origin === "confirmation") return "A second run of a good plan, by a fresh job.";
  if (said === null) return "The search expected nothing of it: it explores.";
  const range = interval(said.step_time_low_s, said.step_time_high_s, stepTime);
  return `Expected gain ${gain(said.gain)} over the best before; fits with ${probability(said.p_fits)}; expected step ${stepTime(said.step_time_s)} (95 %: ${range}).`;
}
