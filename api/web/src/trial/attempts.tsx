/** Every job of the trial: where it ran, how it ended, and why. */
import type { AttemptView, TrialView } from "../api/types";
import { clock, duration } from "../format";
import { Card, Chip } from "../ui/basics";
import { TableFrame } from "../ui/table";
import { useNow } from "../ui/time";
import { CAUSE_WORDS, trialWord, waitWords } from "../words";

export function Attempts({ trial }: { trial: TrialView }) {
  return (
    <Card title={trial.attempts.length === 1 ? "Attempt" : "Attempts"} testid="attempts">
      <TableFrame label="Attempts">
          <thead>
            <tr>{["#", "outcome", "job", "nodes", "waited", "ran", "why"].map((head) => <th key={head} scope="col">{head}</th>)}</tr>
          </thead>
          <tbody>
            {trial.attempts.map((attempt) => (
              <AttemptRow key={attempt.number} attempt={attempt} />
            ))}
          </tbody>
      </TableFrame>
    </Card>
  );
}

function AttemptRow({ attempt }: { attempt: AttemptView }) {
  const { word, tone } = trialWord(attempt);
  return (
    <tr>
      <td>{attempt.number}</td>
      <td>
        <Chip tone={tone}>{word}</Chip>
      </td>
      <td>
        {attempt.job_name}
        {attempt.job_id !== attempt.job_name && <div class="muted small">{attempt.job_id}</div>}
      </td>
      <td>
        {attempt.nodes.join(", ") || "–"}
        {attempt.failed_nodes.length > 0 && <div class="small mistake">to blame: {attempt.failed_nodes.join(", ")}</div>}
        {attempt.avoid.length > 0 && <div class="muted small">kept away from {attempt.avoid.join(", ")}</div>}
      </td>
      <td title={clock(attempt.submitted_at)}><Span start={attempt.submitted_at ?? attempt.planned_at} end={attempt.started_at ?? attempt.finished_at} /></td>
      <td title={clock(attempt.started_at)}><Span start={attempt.started_at} end={attempt.finished_at} /></td>
      <td>{whyWords(attempt)}</td>
    </tr>
  );
}

/** From start to end, or until now. Never negative: a job may start by a clock that is behind the service's. */
function Span({ start, end }: { start: string | null; end: string | null }) {
  const now = useNow();
  if (start === null) return <>–</>;
  const seconds = Math.max(0, ((end === null ? now : Date.parse(end)) - Date.parse(start)) / 1000);
  return <>{end === null ? `${duration(Math.floor(seconds))} so far` : duration(seconds)}</>;
}

function whyWords(attempt: AttemptView): string {
  const { failure, reason, failed_rank, phase, partial } = attempt;
  if (attempt.started_at === null && attempt.verdict === null) return waitWords(attempt) || "–";
  const where = [failed_rank !== null && `rank ${failed_rank}`, phase && `in ${phase}`].filter(Boolean).join(" ");
  const words = [failure && CAUSE_WORDS[failure], reason, where, partial && `${partial.steps} steps before`];
  return words.filter(Boolean).join("; ") || "–";
}
