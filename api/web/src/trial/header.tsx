/** Which trial this is and of which setting, how it ended, and the plan for use. */
import { changesOf } from "../campaign/data/figures";
import { useState } from "preact/hooks";
import { useAct } from "../api/act";
import { newKey, post } from "../api/client";
import { useCan, useChanges } from "../api/session";
import type { CampaignView, TrialBrief, TrialView } from "../api/types";
import { Changes } from "../campaign/page/answer";
import { UseButton } from "../campaign/page/use_button";
import { whyChosen } from "../campaign/page/running";
import { counted } from "../format";
import { go, href } from "../router";
import { Button, ButtonLink, Chip } from "../ui/basics";
import { Trouble } from "../ui/dialog";
import { JsonLink } from "../ui/json";
import { Title } from "../ui/title";
import { CAUSE_WORDS, trialWord } from "../words";

/** A fresh job of the same plan, as a trial of its own. */
function Again({ campaign, path }: { campaign: CampaignView; path: string }) {
  const may = useCan("launch");
  const changes = useChanges(campaign);
  const act = useAct();
  const [key, setKey] = useState(newKey);
  if (!may || !changes) return null;
  const start = () =>
    act.run(async () => {
      const again = await post<TrialView>(`${path}:rerun`, { body: {}, idempotencyKey: key });
      setKey(newKey());
      go(href({ page: "trial", id: campaign.id, number: again.number }));
    });
  return (
    <>
      <Button busy={act.busy} onClick={() => void start()}>Measure again</Button>
      <Trouble act={act} />
    </>
  );
}

/** runs: all of the plan, as far as they are known. */
export function Header({ campaign, trial, path, runs }: { campaign: CampaignView; trial: TrialView; path: string; runs: readonly TrialBrief[] }) {
  const { word, tone } = trialWord(trial);
  const last = trial.attempts.at(-1);
  const at = (number: number) => href({ page: "trial", id: campaign.id, number });
  const to = (number: number) => <a key={number} href={at(number)}>trial {number}</a>;
  const trials = Object.values(campaign.trials).reduce((sum, one) => sum + one, 0);
  const { baseline } = campaign.spec;
  const changes = baseline ? changesOf(trial.plan, baseline) : [];
  const numerics = changes.filter(({ knob }) => campaign.spec.knobs?.some((one) => one.name === knob && one.numerics === "changes"));
  const first = trial.setting?.trial ?? trial.number;
  const others = runs.filter(({ number }) => number !== trial.number);
  return (
    <section class="campaign-head" data-testid="trial-head">
      <p class="small">
        <a href={href({ page: "campaign", id: campaign.id })}>{campaign.name}</a>
      </p>
      <div class="page-head">
        <Title>Trial {trial.number}</Title>
        <Chip tone={tone} testid="outcome">{word}</Chip>
        <span class="row" data-testid="badges">
          {badgesOf(campaign, trial, first).map((words) => <Chip key={words}>{words}</Chip>)}
          {first !== trial.number && <Chip>second run of {to(first)}</Chip>}
          {numerics.length > 0 && <Chip tone="pruned" title={`By ${numerics.map(({ knob }) => knob).join(", ")}`}>changes numerics</Chip>}
          {campaign.simulated && <Chip>simulated</Chip>}
        </span>
        <div class="row push">
          {trial.number > 0 && <ButtonLink kind="quiet" href={at(trial.number - 1)}>← {trial.number - 1}</ButtonLink>}
          {trial.number + 1 < trials && <ButtonLink kind="quiet" href={at(trial.number + 1)}>{trial.number + 1} →</ButtonLink>}
          <JsonLink path={path} />
          {trial.state === "done" && (trial.measurement ?? trial.setting) && <Again campaign={campaign} path={path} />}
          {trial.measurement && <UseButton path={path} simulated={campaign.simulated} primary={trial.verdict === "ok"} />}
        </div>
      </div>
      <p data-testid="changes">
        <Changes campaign={campaign} changes={changes} /> <span class="mono muted">{trial.plan_key}</span>
      </p>
      <p class="muted">
        {whyChosen(trial)}
        {others.length > 0 && <span data-testid="runs"> Other runs of the setting: {others.map(({ number }, at) => [at > 0 && ", ", to(number)])}.</span>}
      </p>
      {last && last.reason !== "" && (
        <p data-testid="reason">
          {last.failure && <strong>{CAUSE_WORDS[last.failure]}{last.phase && `, in ${last.phase}`}{last.failed_rank !== null && `, on rank ${last.failed_rank}`}: </strong>}
          {last.reason}
        </p>
      )}
      {trial.measurement?.hardware.map(({ device, driver, nodes }) => (
        <p key={device + driver} class="muted small" data-testid="hardware">
          {[device, driver && `driver ${driver}`, nodes.join(", ")].filter(Boolean).join(" · ")}
        </p>
      ))}
    </section>
  );
}

/** first: the first run of the setting. */
function badgesOf({ summary }: CampaignView, { setting, origin }: TrialView, first: number): string[] {
  const { recommended, fastest_once, fastest_confirmed } = summary;
  const baseline = origin === "baseline" ? { trial: first } : summary.baseline;
  const named = { recommended, baseline, "fastest once": fastest_once, "fastest confirmed": fastest_confirmed };
  const names = Object.entries(named).filter(([, one]) => one?.trial === first).map(([words]) => words);
  if (!setting || setting.runs === 0) return names;
  const runs = counted(setting.runs, "second run");
  return [...names, setting.failed_again ? "a second run failed" : baseline?.trial === first ? runs : `confirmed by ${runs}`];
}
