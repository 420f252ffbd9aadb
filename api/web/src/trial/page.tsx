/** The page of one trial: what was measured, what was expected, how each attempt went, and the plan for use. */
import { useEffect } from "preact/hooks";
import { useResource } from "../api/resource";
import { openStream } from "../api/stream";
import type { CampaignView, TrialView } from "../api/types";
import "../campaign/charts/charts.css";
import "../campaign/page/campaign.css";
import { EmptyState, ErrorState, LoadingState } from "../ui/states";
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
  return (
    <>
      <Header campaign={campaign} trial={trial} path={path} />
      <Tiles campaign={campaign} trial={trial} />
      {measured === null ? (
        <EmptyState title={trial.state === "done" ? "This trial measured nothing" : "Nothing was measured yet"}>
          <p class="muted">{trial.state === "done" ? "The attempts below say why." : "Step times and memory come with the end of the job; the log below is live."}</p>
        </EmptyState>
      ) : (
        <>
          <div class="halves">
            <StepTimes measured={measured} interval={trial.measurement} />
            <Expected trial={trial} />
          </div>
          <Ranks campaign={campaign} measured={measured} profile={trial.measurement?.profile ?? null} />
          {trial.measurement && <StepParts profile={trial.measurement.profile} />}
          <Losses campaign={campaign} trial={trial} losses={measured.first_losses} norms={trial.measurement?.first_gradient_norms ?? []} />
        </>
      )}
      <Knobs campaign={campaign} trial={trial} />
      <Attempts trial={trial} />
      <Log trial={trial} path={path} />
      <Job path={path} />
    </>
  );
}
