/** The page of one trial: what was measured, what was expected, how each attempt went, and the plan for use. */
import { useEffect } from "preact/hooks";
import { withQuery } from "../api/client";
import { useResource } from "../api/resource";
import { openStream } from "../api/stream";
import type { CampaignView, RegistryView, TrialBriefPage, TrialView } from "../api/types";
import "../campaign/charts/charts.css";
import "../campaign/page/campaign.css";
import { ErrorState, LoadingState } from "../ui/states";
import { Attempts } from "./attempts";
import { Expected } from "./expected";
import { Header } from "./header";
import { Job } from "./job";
import { Knobs } from "./knobs";
import { Log } from "./log";
import { Losses } from "./losses";
import { Ranks } from "./ranks";
import { StepParts } from "./step_parts";
import { StepTimes } from "./step_times";
import { Tiles } from "./tiles";
import "./trial.css";

/** While it runs, for what no event tells. */
const POLL_MS = 10_000;

export function TrialPage({ id, number }: { id: string; number: number }) {
  const path = `campaigns/${encodeURIComponent(id)}`;
  const campaign = useResource<CampaignView>(path);
  const read = useResource<TrialView>(`${path}/trials/${number}`);
  const trial = read.data;
  const done = trial?.state === "done";
  useEffect(() => {
    if (done) return;
    const stream = openStream(id, {
      onReady: read.refresh,
      onEvent: (event) => {
        if (event.data.number === number) read.refresh();
      },
    });
    const timer = setInterval(read.refresh, POLL_MS);
    return () => {
      clearInterval(timer);
      stream.close();
    };
  }, [id, number, done, read.refresh]);
  const problem = read.problem ?? campaign.problem;
  if (!trial || !campaign.data) {
    const retry = () => {
      read.refresh();
      campaign.refresh();
    };
    return problem ? <ErrorState problem={problem} onRetry={retry} /> : <LoadingState lines={8} height={36} />;
  }
  return <Whole campaign={campaign.data} trial={trial} path={`${path}/trials/${number}`} />;
}

function Whole({ campaign, trial, path }: { campaign: CampaignView; trial: TrialView; path: string }) {
  const measured = trial.measurement ?? trial.partial;
  const done = trial.state === "done";
  const { tp, pp, dp, micro_batch_size, zero_stage } = trial.plan;
  const alike = useResource<TrialBriefPage>(done ? withQuery(`campaigns/${encodeURIComponent(campaign.id)}/trials`, { view: "brief", page_size: 1000, tp, pp, dp, micro_batch_size, zero_stage }) : null);
  const runs = alike.data?.trials.filter((one) => one.plan_key === trial.plan_key) ?? [];
  const cause = trial.attempts.at(-1)?.failure;
  const registry = useResource<RegistryView>(cause ? "registry" : null);
  const profile = trial.measurement?.profile ?? null;
  const log = !campaign.simulated && <Log trial={trial} path={path} />;
  return (
    <>
      <Header campaign={campaign} trial={trial} path={path} runs={runs} />
      <Tiles campaign={campaign} trial={trial} own={runs.find(({ number }) => number === trial.number)} />
      {cause && <p data-testid="mend">{registry.data?.advice[cause]?.words}</p>}
      {measured === null ? (
        log
      ) : (
        <>
          <div class="halves">
            <StepTimes trial={trial} />
            <Expected trial={trial} />
          </div>
          <Ranks campaign={campaign} trial={trial} />
          {profile && <StepParts profile={profile} />}
          {measured.first_losses.length > 0 && <Losses campaign={campaign} trial={trial} />}
        </>
      )}
      <Knobs campaign={campaign} trial={trial} />
      <Attempts trial={trial} />
      {measured !== null && log}
      {!campaign.simulated && <Job path={path} />}
    </>
  );
}
