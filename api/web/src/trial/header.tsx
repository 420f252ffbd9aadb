/** Which trial this is, how it ended, and the plan for use. */
import { useState } from "preact/hooks";
import { useAct } from "../api/act";
import { newKey, post } from "../api/client";
import { useCan, useChanges } from "../api/session";
import type { CampaignView, TrialView } from "../api/types";
import { UseButton } from "../campaign/page/use_button";
import { whyChosen } from "../campaign/page/running";
import { go, href } from "../router";
import { Button, ButtonLink, Chip } from "../ui/basics";
import { Trouble } from "../ui/dialog";
import { JsonLink } from "../ui/json";
import { Title } from "../ui/title";
import { CAUSE_WORDS, trialWord } from "../words";

interface HeaderProps {
  campaign: CampaignView;
  trial: TrialView;
  path: string;
}

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

export function Header({ campaign, trial, path }: HeaderProps) {
  const { word, tone } = trialWord(trial);
  const last = trial.attempts.at(-1);
  const at = (number: number) => href({ page: "trial", id: campaign.id, number });
  const trials = Object.values(campaign.trials).reduce((sum, one) => sum + one, 0);
  return (
    <section class="campaign-head" data-testid="trial-head">
      <p class="small">
        <a href={href({ page: "campaign", id: campaign.id })}>{campaign.name}</a>
      </p>
      <div class="page-head">
        <Title>Trial {trial.number}</Title>
        <Chip tone={tone} testid="outcome">{word}</Chip>
        {campaign.simulated && <Chip title="No device ran this trial">simulated</Chip>}
        <span class="mono">{trial.plan_key}</span>
        <div class="row push">
          {trial.number > 0 && <ButtonLink kind="quiet" href={at(trial.number - 1)}>← {trial.number - 1}</ButtonLink>}
          {trial.number + 1 < trials && <ButtonLink kind="quiet" href={at(trial.number + 1)}>{trial.number + 1} →</ButtonLink>}
          <JsonLink path={path} />
          {trial.state === "done" && <Again campaign={campaign} path={path} />}
          {trial.measurement && <UseButton path={path} simulated={campaign.simulated} primary={trial.verdict === "ok"} />}
        </div>
      </div>
      <p class="muted">{whyChosen(trial)}</p>
      {last && last.reason !== "" && (
        <p data-testid="reason">
          {last.failure && <strong>{CAUSE_WORDS[last.failure]}: </strong>}
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
