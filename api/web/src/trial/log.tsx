/** The end of a log of one attempt, read again and again while the job runs. */
import { useEffect, useRef, useState } from "preact/hooks";
import { text } from "../api/client";
import { asProblem, type Problem } from "../api/problem";
import { useResource } from "../api/resource";
import type { LogsView, TrialView } from "../api/types";
import { bytes } from "../format";
import { Card } from "../ui/basics";
import { CopyButton } from "../ui/copy";

const TAIL_BYTES = 32_768;
const POLL_MS = 2000;
const FILES_POLL_MS = 10_000;

export function Log({ trial, path }: { trial: TrialView; path: string }) {
  const last = trial.attempts.length;
  const [asked, setAttempt] = useState<number | null>(null);
  const [askedFile, setFile] = useState("");
  const number = asked ?? last;
  const attempt = trial.attempts.find((one) => one.number === number);
  const live = attempt !== undefined && attempt.state !== "done";
  const logs = `${path}/attempts/${number}/logs`;
  const { data } = useResource<LogsView>(logs, live ? FILES_POLL_MS : 0);
  const files = data?.files ?? [];
  const file = files.find((one) => one.name === askedFile) ?? files.find((one) => one.bytes > 0) ?? files[0];
  const tail = useTail(file && (live || file.bytes > 0) ? `${logs}/${file.name.split("/").map(encodeURIComponent).join("/")}` : null, live);
  const shown = tail.text || (live ? "" : (attempt?.log_tail ?? ""));
  if (shown === "" && !live && last < 2) return null;
  return (
    <Card
      title="Log"
      testid="log"
      aside={
        <>
          {live && <span class="small muted" role="status">live</span>}
          {trial.attempts.length > 1 && (
            <select aria-label="Attempt" value={number} onChange={(event) => setAttempt(Number(event.currentTarget.value))}>
              {trial.attempts.map((one) => <option key={one.number} value={one.number}>attempt {one.number}</option>)}
            </select>
          )}
          {files.length > 0 && (
            <select aria-label="File" value={file?.name ?? ""} onChange={(event) => setFile(event.currentTarget.value)}>
              {files.map((one) => <option key={one.name} value={one.name}>{one.name} ({bytes(one.bytes)})</option>)}
            </select>
          )}
          {shown !== "" && <CopyButton text={shown} />}
        </>
      }
    >
      {tail.problem && <p class="mistake">{tail.problem.message}</p>}
      {shown === "" ? <p class="muted">Nothing was written yet.</p> : <Tail text={shown} />}
      {tail.cut !== null && <p class="small muted">The last {bytes(TAIL_BYTES)} of {bytes(tail.cut)}.</p>}
    </Card>
  );
}

const NOTHING = { text: "", cut: null as number | null, problem: null as Problem | null };

/** path: null reads nothing. live: again and again. cut: bytes of the whole file, where only its end is shown. */
function useTail(path: string | null, live: boolean): typeof NOTHING {
  const [read, setRead] = useState(NOTHING);
  useEffect(() => {
    setRead(NOTHING);
    if (path === null) return;
    const aborter = new AbortController();
    let timer = 0;
    const again = async () => {
      try {
        const part = await text(path, `bytes=-${TAIL_BYTES}`, aborter.signal);
        const cut = part.total !== null && part.total > TAIL_BYTES ? part.total : null;
        // A cut end starts within a line, or within a character.
        setRead({ text: cut === null ? part.text : part.text.slice(part.text.indexOf("\n") + 1), cut, problem: null });
      } catch (error) {
        if (aborter.signal.aborted) return;
        setRead((before) => ({ ...before, problem: asProblem(error) }));
      }
      if (live) timer = window.setTimeout(() => void again(), POLL_MS);
    };
    void again();
    return () => {
      aborter.abort();
      clearTimeout(timer);
    };
  }, [path, live]);
  return read;
}

/** Stays at its end, unless the reader scrolled up. */
function Tail({ text }: { text: string }) {
  const element = useRef<HTMLPreElement>(null);
  const follows = useRef(true);
  useEffect(() => {
    const box = element.current!;
    if (follows.current) box.scrollTop = box.scrollHeight;
  }, [text]);
  return (
    <pre
      ref={element}
      class="code-block log-tail"
      tabIndex={0}
      aria-label="End of the log"
      onScroll={(event) => {
        const box = event.currentTarget;
        follows.current = box.scrollHeight - box.scrollTop - box.clientHeight < 20;
      }}
    >
      {text}
    </pre>
  );
}
