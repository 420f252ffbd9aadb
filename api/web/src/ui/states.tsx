/** What is shown where there is nothing to show yet, nothing at all, or trouble. */
import type { ComponentChildren } from "preact";
import type { StreamState } from "../api/stream";
import type { Problem } from "../api/problem";
import { Button, Dot, Prose } from "./basics";

/** Grey lines of about the height of what will come, so that nothing jumps. */
export function LoadingState({ lines = 8, height = 36 }: { lines?: number; height?: number }) {
  return (
    <div class="loading" role="status" aria-label="Loading">
      {Array.from({ length: lines }, (_, line) => (
        <div key={line} style={{ height: `${height}px`, width: line === lines - 1 && lines > 1 ? "60%" : "100%" }} />
      ))}
    </div>
  );
}

export function EmptyState({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty-state" data-testid="empty">
      <p><strong>{title}</strong></p>
      {children}
    </div>
  );
}

export function ErrorState({ problem, onRetry }: { problem: Problem; onRetry?: () => void }) {
  return (
    <div class="error-state" role="alert" data-testid="error">
      <p>
        <strong>{problem.title}</strong>
        {problem.status > 0 && <span class="muted"> ({problem.status})</span>}
      </p>
      {problem.detail && problem.detail !== problem.title && <p><Prose text={problem.detail} /></p>}
      {problem.mistakes.length > 1 && (
        <ul>
          {problem.mistakes.map(({ pointer, detail }) => <li key={pointer + detail}><code>{pointer || "the body"}</code>: <Prose text={detail} /></li>)}
        </ul>
      )}
      {onRetry && <Button onClick={onRetry}>Try again</Button>}
    </div>
  );
}

/** Always of one width, so that the header stands still. */
export function LiveMark({ state }: { state: StreamState }) {
  const tone = state === "live" ? "ok" : state === "reconnecting" ? "failed" : "pruned";
  return (
    <span class="live-mark small muted" role="status" data-testid="live" data-state={state}>
      <Dot tone={tone} /> {state === "stopped" ? "not live" : state}
    </span>
  );
}

/** While the stream is away. It lies over the page and moves nothing. */
export function ReconnectingBanner({ state }: { state: StreamState }) {
  const words = { reconnecting: "The service does not answer. What is shown may be old; it goes on by itself.", stopped: "Live updates have ended: load the page again." };
  return state in words ? <div class="banner" role="status" data-testid="reconnecting">{words[state as keyof typeof words]}</div> : null;
}
