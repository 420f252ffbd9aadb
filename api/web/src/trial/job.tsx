/** What was submitted, or would be: the command, the batch script and the files of the job. */
import { useResource } from "../api/resource";
import type { JobView } from "../api/types";
import { Text } from "../campaign/page/exports";
import { Card } from "../ui/basics";
import { ErrorState, LoadingState } from "../ui/states";

export function Job({ path }: { path: string }) {
  const { data, problem, refresh } = useResource<JobView>(`${path}/job`);
  return (
    <Card title="Job" testid="job">
      {problem && !data ? <ErrorState problem={problem} onRetry={refresh} /> : data ? <Documents job={data} /> : <LoadingState lines={4} />}
    </Card>
  );
}

function Documents({ job }: { job: JobView }) {
  const texts = { Command: job.command.map(quoted).join(" "), ...job.files };
  return (
    <>
      <p class="small muted">in {job.directory}</p>
      {Object.entries(texts).map(([name, text]) => (
        <details key={name} class="folded" open={name === "Command"}>
          <summary>{name}</summary>
          <Text name="" text={text} />
        </details>
      ))}
    </>
  );
}

/** A word as a shell takes it. */
export function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
