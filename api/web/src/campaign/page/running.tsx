/** What runs now, and why the search chose it. */
import type { CampaignView, Expectation, TrialBrief } from "../../api/types";
import { gain, interval, probability, stepTime } from "../../format";
import { href } from "../../router";
import { Card, Chip } from "../../ui/basics";
import { Ago } from "../../ui/time";
import { trialWord, waitWords } from "../../words";

const MOST = 12;

export function Running({ campaign, trials }: { campaign: CampaignView; trials: readonly TrialBrief[] }) {
  const active = trials.filter((trial) => trial.state !== "done");
  return (
    <Card title="Running now" testid="running" aside={<span class="muted small">{active.length === 0 ? "" : `${active.length} in flight`}</span>}>
      {active.length === 0 ? (
        <p class="muted">{idleWords(campaign)}</p>
      ) : (
        <ul class="running">
          {active.slice(0, MOST).map((trial) => (
            <RunningTrial key={trial.number} campaign={campaign.id} trial={trial} />
          ))}
          {active.length > MOST && <li class="muted">and {active.length - MOST} more</li>}
        </ul>
      )}
    </Card>
  );
}

function idleWords({ state, trouble }: CampaignView): string {
  if (trouble !== "") return `Nothing: ${trouble}.`;
  if (state === "running") return "Nothing: the search is choosing.";
  return state === "paused" ? "Nothing: the campaign is paused." : "Nothing: the campaign is over.";
}

function RunningTrial({ campaign, trial }: { campaign: string; trial: TrialBrief }) {
  const { word, tone } = trialWord(trial);
  return (
    <li>
      <div class="row">
        <a href={href({ page: "trial", id: campaign, number: trial.number })}>#{trial.number}</a>
        <Chip tone={tone}>{word}</Chip>
        <span class="mono">{trial.plan_key}</span>
        <span class="muted small"><Ago time={trial.started_at ?? trial.submitted_at ?? trial.planned_at} /></span>
      </div>
      {trial.started_at === null && <p class="small">{waitWords(trial)}</p>}
      <p class="small">{whyChosen(trial)}</p>
    </li>
  );
}

export function whyChosen({ origin, expectation }: Pick<TrialBrief, "origin" | "expectation">): string {
  if (origin === "baseline") return "The present plan: what every other is compared with.";
  if (origin === "confirmation") return "A second run of a good plan, by a fresh job.";
  return expectation === null ? "The search expected nothing of it: it explores." : expectationWords(expectation);
}

function expectationWords({ gain: expected, p_fits, step_time_s, step_time_low_s, step_time_high_s }: Expectation): string {
  const range = interval(step_time_low_s, step_time_high_s, stepTime);
  return `Expected gain ${gain(expected)} over the best before; fits with ${probability(p_fits)}; expected step ${stepTime(step_time_s)} (95 %: ${range}).`;
}
