/** Every job of the trial: where it ran, how it ended, and why. */
import type { AttemptView, TrialView } from "../api/types";
import { clock, duration } from "../format";
import { Card, Chip } from "../ui/basics";
import { DataTable } from "../ui/data_table";
import { useNow } from "../ui/time";
import { CAUSE_WORDS, trialWord, waitWords, whereWords } from "../words";

export function Attempts({ trial }: { trial: TrialView }) {
  const rows = trial.attempts.map((attempt) => {
    const { number, job_name, job_id, nodes, failed_nodes, avoid, submitted_at, planned_at, started_at, finished_at } = attempt;
    const { word, tone } = trialWord(attempt);
    return [
      number,
      <Chip tone={tone}>{word}</Chip>,
      <>
        {job_name}
        {job_id !== job_name && <div class="muted small">{job_id}</div>}
      </>,
      <>
        {nodes.join(", ") || "–"}
        {failed_nodes.length > 0 && <div class="small mistake">to blame: {failed_nodes.join(", ")}</div>}
        {avoid.length > 0 && <div class="muted small">kept away from {avoid.join(", ")}</div>}
      </>,
      <Span start={submitted_at ?? planned_at} end={started_at ?? finished_at} />,
      <Span start={started_at} end={finished_at} />,
      whyWords(attempt),
    ];
  });
  return (
    <Card title={rows.length === 1 ? "Attempt" : "Attempts"} testid="attempts">
      <DataTable label="Attempts" heads={["#", "outcome", "job", "nodes", "waited", "ran", "why"]} rows={rows} />
    </Card>
  );
}

/** From start to end, or until now. Never negative: a job may start by a clock that is behind the service's. */
function Span({ start, end }: { start: string | null; end: string | null }) {
  const now = useNow();
  if (start === null) return <>–</>;
  const seconds = Math.max(0, ((end === null ? now : Date.parse(end)) - Date.parse(start)) / 1000);
  return <span title={clock(start)}>{end === null ? `${duration(Math.floor(seconds))} so far` : duration(seconds)}</span>;
}

function whyWords(attempt: AttemptView): string {
  const { failure, reason, partial } = attempt;
  if (attempt.started_at === null && attempt.verdict === null) return waitWords(attempt) || "–";
  const words = [failure && CAUSE_WORDS[failure], reason, whereWords(attempt), partial && `${partial.steps} steps before`];
  return words.filter(Boolean).join("; ") || "–";
}
