/** What was submitted, or would be: the command, the batch script and the files of the job. */
import { useResource } from "../api/resource";
import type { JobView } from "../api/types";
import { Text } from "../campaign/page/exports";
import { Card } from "../ui/basics";
import { ErrorState, LoadingState } from "../ui/states";

export function Job({ path }: { path: string }) {
  const { data, problem, refresh } = useResource<JobView>(`${path}/job`);
  const texts = data && { Command: data.command.map(quoted).join(" "), ...data.files };
  return (
    <Card title="Job" testid="job">
      {texts ? <p class="small muted">in {data.directory}</p> : problem ? <ErrorState problem={problem} onRetry={refresh} /> : <LoadingState lines={4} />}
      {Object.entries(texts ?? {}).map(([name, text]) => (
        <details key={name} class="folded" open={name === "Command"}>
          <summary>{name}</summary>
          <Text name="" text={text} />
        </details>
      ))}
    </Card>
  );
}

/** A word as a shell takes it. */
export function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
