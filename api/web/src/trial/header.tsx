/** Which trial this is, how it ended, and the setting for use. */
import type { CampaignView, TrialView } from "../api/types";
import { ExportButton } from "../campaign/page/exports";
import { whyChosen } from "../campaign/page/running";
import { href } from "../router";
import { ButtonLink, Chip } from "../ui/basics";
import { JsonLink } from "../ui/json";
import { Title } from "../ui/title";
import { CAUSE_WORDS, simulated, trialWord } from "../words";

interface HeaderProps {
  campaign: CampaignView;
  trial: TrialView;
  path: string;
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
        {simulated(campaign) && <Chip title="No device ran this trial">simulated</Chip>}
        <span class="mono">{trial.plan_key}</span>
        <div class="row push">
          {trial.number > 0 && <ButtonLink kind="quiet" href={at(trial.number - 1)}>← {trial.number - 1}</ButtonLink>}
          {trial.number + 1 < trials && <ButtonLink kind="quiet" href={at(trial.number + 1)}>{trial.number + 1} →</ButtonLink>}
          <JsonLink path={path} />
          <ExportButton path={path} title={`The setting of trial ${trial.number}, for use`} />
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
