/** After the next frame: what need not be in it, and would only hold it up. */
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useState } from "preact/hooks";

/** So long the browser has to itself to put a painted frame on the screen. */
const SHOWN_MS = 16;

/** Calls the task once the next frame is on the screen, unless the returned function is called before. */
export function afterFrame(task: () => void): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const frame = requestAnimationFrame(() => (timer = setTimeout(task, SHOWN_MS)));
  return () => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
  };
}

/** What lies below the screen: in the page from the second frame on, and its room (`.to-come`) in the first. */
export function Later({ children }: { children: () => ComponentChildren }) {
  const [come, comes] = useState(false);
  useLayoutEffect(() => afterFrame(() => comes(true)), []);
  return come ? <>{children()}</> : <div class="to-come" />;
}
