/** Live events: /v1/stream read with fetch, because EventSource cannot send the token. */
import { Store } from "../store";
import { request } from "./client";
import { Problem } from "./problem";
import type { EventView } from "./types";

/** connecting: for the first time. stopped: closed, or refused in a way that asking again does not mend. */
export type StreamState = "connecting" | "live" | "reconnecting" | "paused" | "stopped";

/** One event of text/event-stream; id "" where none was sent yet. */
export interface Message {
  id: string;
  event: string;
  data: string;
}

/** Cuts a stream of text into its messages, wherever the pieces were split. Comments are dropped. */
export class MessageReader {
  private rest = "";
  private id = "";
  private event = "";
  private data: string[] = [];
  /** Milliseconds of the last `retry:`, null before one came. */
  retryMs: number | null = null;

  push(piece: string): Message[] {
    const lines = (this.rest + piece).split(/\r\n|\n|\r(?=[^])/);
    this.rest = lines.pop() ?? "";
    return lines.flatMap((line) => this.line(line));
  }

  private line(line: string): Message[] {
    if (line === "") return this.end();
    const at = line.indexOf(":");
    const field = at < 0 ? line : line.slice(0, at); // "" for a comment
    const value = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "");
    if (field === "id") this.id = value;
    else if (field === "event") this.event = value;
    else if (field === "data") this.data.push(value);
    else if (field === "retry" && /^\d+$/.test(value)) this.retryMs = Number(value);
    return [];
  }

  private end(): Message[] {
    const message = { id: this.id, event: this.event || "message", data: this.data.join("\n") };
    const empty = this.data.length === 0;
    this.event = "";
    this.data = [];
    return empty ? [] : [message];
  }
}

export interface Listener {
  /** The snapshot may be stale: read it again. Called after each connection, when all that was missed has come. */
  onReady: () => void;
  onEvent: (event: EventView) => void;
}

export interface Stream {
  state: Store<StreamState>;
  pause: () => void;
  resume: () => void;
  close: () => void;
}

const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 30_000;
/** The service sends a comment every 15 s: silence for so long is a dead connection. */
const SILENCE_MS = 40_000;

/** Follow the events of one campaign (null: of all), from now or from when `after` is settled, until `close`. Reconnects
 * where it broke off. */
export function openStream(campaign: string | null, listener: Listener, after: Promise<void> = Promise.resolve()): Stream {
  const state = new Store<StreamState>("connecting");
  const path = campaign === null ? "stream" : `stream?campaign=${encodeURIComponent(campaign)}`;
  let lastId = "";
  let aborter = new AbortController();
  let timer = 0;
  let waitMs = FIRST_WAIT_MS;

  function hear(message: Message): void {
    if (message.id) lastId = message.id;
    if (message.event === "ready") {
      waitMs = FIRST_WAIT_MS;
      state.set("live");
      listener.onReady();
    } else if (message.data) listener.onEvent(JSON.parse(message.data) as EventView);
  }

  async function connect(): Promise<void> {
    const mine = new AbortController();
    aborter = mine;
    try {
      const headers: Record<string, string> = { Accept: "text/event-stream" };
      if (lastId) headers["Last-Event-ID"] = lastId;
      const answer = await request(path, { headers, signal: mine.signal });
      const wait = await listen(answer, mine, hear);
      if (wait !== null) waitMs = Math.max(wait, waitMs);
    } catch (error) {
      if (mine !== aborter || closed()) return;
      if (error instanceof Problem && !error.passing) return state.set("stopped");
      if (error instanceof Problem && error.retryAfterS !== null) waitMs = Math.max(waitMs, error.retryAfterS * 1000);
    }
    if (mine !== aborter || closed()) return;
    state.set("reconnecting");
    timer = window.setTimeout(() => void connect(), waitMs);
    waitMs = Math.min(waitMs * 2, LONGEST_WAIT_MS);
  }

  function closed(): boolean {
    return state.get() === "paused" || state.get() === "stopped";
  }

  function end(last: "paused" | "stopped"): void {
    state.set(last);
    clearTimeout(timer);
    aborter.abort();
  }

  void after.then(() => {
    if (state.get() === "connecting") void connect();
  });
  return {
    state,
    pause: () => end("paused"),
    resume: () => {
      if (state.get() !== "paused") return;
      state.set("reconnecting");
      waitMs = FIRST_WAIT_MS;
      void connect();
    },
    close: () => end("stopped"),
  };
}

/** Read until the connection ends; returns the milliseconds that the service wants us to wait, null for none said. */
async function listen(answer: Response, aborter: AbortController, hear: (message: Message) => void): Promise<number | null> {
  const reader = new MessageReader();
  const body = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
  if (!body) return null;
  for (;;) {
    const silence = setTimeout(() => aborter.abort(), SILENCE_MS);
    try {
      const { done, value } = await body.read();
      if (done) return reader.retryMs;
      for (const message of reader.push(value)) hear(message);
    } catch (error) {
      if (aborter.signal.aborted) return reader.retryMs; // silence, or closed: the caller looks
      throw error;
    } finally {
      clearTimeout(silence);
    }
  }
}
