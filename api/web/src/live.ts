/** A component that follows the events of a campaign, or of all. */
import { useEffect, useState } from "preact/hooks";
import { openStream, type StreamState } from "./api/stream";

/** At most one call in this time, so that a burst of events costs one read. */
const CALM_MS = 500;

/** Calls `changed` after events, and after each connection; returns the state of the stream. */
export function useLive(campaign: string | null, changed: () => void): StreamState {
  const [state, setState] = useState<StreamState>("connecting");
  useEffect(() => {
    let timer = 0;
    const soon = () => {
      timer ||= window.setTimeout(() => {
        timer = 0;
        changed();
      }, CALM_MS);
    };
    const stream = openStream(campaign, { onReady: soon, onEvent: soon });
    const stop = stream.state.subscribe(() => setState(stream.state.get()));
    return () => {
      stop();
      stream.close();
      clearTimeout(timer);
    };
  }, [campaign, changed]);
  return state;
}
