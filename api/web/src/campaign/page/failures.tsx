/** The failed trials by cause, the most frequent first: what to do, and each setting with what its job left. */
import { useState } from "preact/hooks";
import { useResource } from "../../api/resource";
import { useCan } from "../../api/session";
import type { Advice, Analysis, CampaignView, Cause, RegistryView, TrialBrief, TrialView } from "../../api/types";
import { bytes, counted } from "../../format";
import { href } from "../../router";
import { Button, ButtonLink, Card } from "../../ui/basics";
import { Dialog } from "../../ui/dialog";
import { ErrorState, LoadingState } from "../../ui/states";
import { TableFrame } from "../../ui/table";
import { CAUSE_WORDS, changeWords, whereWords } from "../../words";
import { FailureChart } from "../charts/failure_chart";
import { changesOf } from "../data/figures";
import { useNeed } from "../data/need";

const FIRST = 8;

interface FailuresProps {
  campaign: CampaignView;
  trials: readonly TrialBrief[];
  analysis: Analysis | undefined;
}

export function FailuresTab({ campaign, trials, analysis }: FailuresProps) {
  const { data } = useResource<RegistryView>("registry");
  const causes = new Map<Cause, TrialBrief[]>();
  for (const trial of trials) if (trial.failure) causes.set(trial.failure, [...(causes.get(trial.failure) ?? []), trial]);
  return (
    <div class="chart-cards">
      {[...causes].sort(([, a], [, b]) => b.length - a.length).map(([cause, own]) => (
        <CauseCard key={cause} campaign={campaign} cause={cause} trials={own} advice={data?.advice[cause]} />
      ))}
      {analysis && <FailureChart analysis={analysis} />}
    </div>
  );
}

interface CauseProps extends Omit<FailuresProps, "analysis"> {
  cause: Cause;
  advice: Advice | undefined;
}

function CauseCard({ campaign, cause, trials, advice }: CauseProps) {
  const [all, showAll] = useState(false);
  const [log, openLog] = useState<string | null>(null);
  const may = useCan("launch");
  const path = `campaigns/${encodeURIComponent(campaign.id)}`;
  return (
    <Card
      testid={`cause-${cause}`}
      title={<><span class={`dot tone-${cause === "oom" ? "oom" : "failed"}`} aria-hidden="true" /> {CAUSE_WORDS[cause]}: {counted(trials.length, "trial")}</>}
      aside={may && <ButtonLink href={href({ page: "new" }, { from: campaign.id })}>{advice?.again ? "Run again" : "Fix and run again"}</ButtonLink>}
    >
      <p data-testid="advice">{advice?.words}</p>
      <TableFrame label={`Trials that ended with ${CAUSE_WORDS[cause]}`} dense>
        <tbody>
          {trials.slice(0, all ? trials.length : FIRST).map((trial) => (
            <tr key={trial.number} data-testid={`failed-${trial.number}`}>
              <td><a href={href({ page: "trial", id: campaign.id, number: trial.number })}>#{trial.number}</a></td>
              <td>{settingWords(campaign, trial)}</td>
              <td>{cause === "oom" && <Predicted campaign={campaign} trial={trial} />}<span class="muted">{trial.reason}</span></td>
              {!campaign.simulated && <td><Button onClick={() => openLog(`${path}/trials/${trial.number}`)}>Log</Button></td>}
            </tr>
          ))}
        </tbody>
      </TableFrame>
      {!all && trials.length > FIRST && <Button kind="link" onClick={() => showAll(true)}>All {counted(trials.length, "trial")}</Button>}
      {log && <LogDialog path={log} onClose={() => openLog(null)} />}
    </Card>
  );
}

/** What differs from the baseline. */
function settingWords({ spec: { baseline } }: CampaignView, { plan, plan_key }: TrialBrief): string {
  if (!baseline) return plan_key;
  return changesOf(plan, baseline).map(changeWords).join(", ") || "the baseline";
}

/** The predicted peak as a bar, with a mark where the device ends. */
function Predicted({ campaign, trial }: { campaign: CampaignView; trial: TrialBrief }) {
  const limit = campaign.spec.cluster.device?.memory_bytes;
  const need = useNeed(trial.expectation ? null : campaign.id, trial.plan);
  const peak = trial.expectation?.peak_bytes ?? need?.peak_bytes.value;
  if (peak === undefined || limit === undefined) return null;
  const most = Math.max(peak, limit);
  return (
    <div class="memory">
      <span class="memory-room" aria-hidden="true">
        <span class="bar" style={{ width: `${(100 * peak) / most}%` }} />
        <span class="memory-end" style={{ left: `${(100 * limit) / most}%` }} />
      </span>
      predicted {bytes(peak)} of {bytes(limit)}
    </div>
  );
}

function LogDialog({ path, onClose }: { path: string; onClose: () => void }) {
  const { data, problem } = useResource<TrialView>(path);
  const last = data?.attempts.at(-1);
  const where = last && whereWords(last);
  return (
    <Dialog title={`Trial ${data?.number ?? ""}: end of the log`} onClose={onClose} wide testid="failure-log">
      {problem && <ErrorState problem={problem} />}
      {!data && !problem && <LoadingState />}
      {where && <p>Where it failed: {where}.</p>}
      {last && <pre class="code-block log-tail" tabIndex={0} aria-label="End of the log">{last.log_tail || "The job left no log."}</pre>}
    </Dialog>
  );
}
