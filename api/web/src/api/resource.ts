/** A document that a component shows: loaded, polled while the page is visible, kept while it is read again. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { get } from "./client";
import { asProblem, type Problem } from "./problem";

export interface Resource<T> {
  /** The last document read; undefined before the first. It stays while a later read fails. */
  data: T | undefined;
  /** Of the last read. */
  problem: Problem | undefined;
  /** Read again now. */
  refresh: () => void;
}

/** path: null reads nothing. everyMs: read again so often while the page is visible; 0 never. */
export function useResource<T>(path: string | null, everyMs = 0): Resource<T> {
  const [held, hold] = useState<{ path: string | null; data?: T; problem?: Problem }>({ path: null });
  const reading = useRef<() => void>(() => {});
  useEffect(() => {
    if (path === null) return;
    const aborter = new AbortController();
    let timer = 0;
    let busy = false;
    let again = false;
    const read = async () => {
      if (busy) return void (again = true); // what is under way may have been answered before the change that this is for
      busy = true;
      clearTimeout(timer);
      let wait = everyMs;
      try {
        const data = await get<T>(path, aborter.signal);
        hold((last) => (last.path === path && last.data === data && !last.problem ? last : { path, data }));
      } catch (error) {
        if (aborter.signal.aborted) return;
        const problem = asProblem(error);
        if (problem.retryAfterS !== null) wait = Math.max(wait, problem.retryAfterS * 1000);
        hold((last) => (last.path === path && last.data !== undefined ? { path, data: last.data, problem } : { path, problem }));
      } finally {
        busy = false;
      }
      if (aborter.signal.aborted) return;
      if (again) {
        again = false;
        void read();
      } else if (everyMs > 0) timer = window.setTimeout(look, wait);
    };
    const look = () => void (everyMs > 0 && !document.hidden && read());
    reading.current = () => void read();
    document.addEventListener("visibilitychange", look);
    void read();
    return () => {
      aborter.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", look);
    };
  }, [path, everyMs]);
  const refresh = useCallback(() => reading.current(), []);
  const { data, problem } = held.path === path ? held : { data: undefined, problem: undefined };
  return { data, problem, refresh };
}
