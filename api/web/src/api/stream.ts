/** Live events: /v1/stream read with fetch, because EventSource cannot send the token. A browser has six connections to a
 * service, so all pages of a token share one stream of all events: the page that has the lock reads it, and tells the others.
 * Without locks (plain http elsewhere) each page reads its own. A page that nobody sees has none. */
import { Store } from "../store";
import { address, newKey, request } from "./client";
import { Problem } from "./problem";
import { token } from "./token";
import type { EventView } from "./types";

/** connecting: for the first time, or in another page. stopped: closed, or refused in a way that asking again does not mend. */
export type StreamState = "connecting" | "live" | "reconnecting" | "paused" | "stopped";

/** One event of text/event-stream. */
export interface Message {
  id: string;
  event: string;
  data: string;
}

/** Cuts the service's stream of text into its messages, wherever the pieces were split. What has no data is dropped. */
export class MessageReader {
  private rest = "";

  push(piece: string): Message[] {
    const blocks = (this.rest + piece).split("\n\n");
    this.rest = blocks.pop()!;
    return blocks.flatMap((block) => {
      const { id = "", event = "", data } = Object.fromEntries(block.split("\n").map((line) => line.split(/: ?(.*)/, 2))) as Partial<Message>;
      return data ? [{ id, event, data }] : [];
    });
  }
}

export interface Listener {
  /** The snapshot may be stale: read it again. Called after each connection, when all that was missed has come. */
  onReady: () => void;
  onEvent: (event: EventView) => void;
}

export type Stream = ReturnType<typeof openStream>;

const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 30_000;
/** The service sends a comment every 15 s: silence for so long is a dead connection. */
const SILENCE_MS = 40_000;

/** What the page that reads says to all: how the stream is, or a message of it. "who" asks how it is. */
type Said = { state: StreamState; id: string } | { message: Message } | "who";

const hearers = new Set<{ campaign: string | null; listener: Listener; state: Store<StreamState> }>();
let state: StreamState = "connecting";
let lastId = "";
let leave: (() => void) | null = null;

/** Follow the events of one campaign (null: of all), from now or from when `after` is settled, until `close`. Reconnects
 * where it broke off. */
export function openStream(campaign: string | null, listener: Listener, after: Promise<void> = Promise.resolve()) {
  const hearer = { campaign, listener, state: new Store<StreamState>("connecting") };
  const start = () => {
    hearers.add(hearer);
    follow();
    settle(hearer);
  };
  const end = (last: "paused" | "stopped") => {
    hearers.delete(hearer);
    hearer.state.set(last);
    follow();
  };
  void after.then(() => hearer.state.get() === "connecting" && start());
  return {
    state: hearer.state,
    pause: () => end("paused"),
    resume: () => void (hearer.state.get() === "paused" && start()),
    close: () => end("stopped"),
  };
}

function settle(hearer: { listener: Listener; state: Store<StreamState> }): void {
  hearer.state.set(state);
  if (state === "live") hearer.listener.onReady();
}

function hear(said: Exclude<Said, "who">): void {
  if ("state" in said) {
    lastId = said.id || lastId;
    if (said.state === state) return;
    state = said.state;
    hearers.forEach(settle);
    return;
  }
  lastId = said.message.id || lastId;
  const event = JSON.parse(said.message.data) as EventView;
  for (const { campaign, listener } of hearers) if (campaign === null || campaign === event.campaign_id) listener.onEvent(event);
}

/** Take part while the page is seen, somebody here listens, and there is a token. */
function follow(event?: Event): void {
  const wanted = hearers.size > 0 && token.get() !== "" && !document.hidden && event?.type !== "pagehide";
  if (wanted) leave ??= takePart();
  else stop();
}

/** All is read again afterwards: what happened until then need not be told. */
function stop(): void {
  leave?.();
  leave = null;
  lastId = "";
  state = "connecting";
}

if (typeof document !== "undefined") {
  for (const type of ["pagehide", "pageshow", "visibilitychange"]) addEventListener(type, follow);
  token.subscribe(() => {
    stop();
    follow();
  });
}

/** Until the returned function is called. */
function takePart(): () => void {
  const aborter = new AbortController();
  const { signal } = aborter;
  const name = `${token.get()} ${address("stream")}`;
  const others = new BroadcastChannel(navigator.locks ? name : newKey());
  let reads = false;
  others.onmessage = ({ data }: MessageEvent<Said>) => {
    if (data !== "who") hear(data);
    else if (reads) others.postMessage({ state, id: lastId });
  };
  others.postMessage("who");
  const lead = () => {
    reads = true;
    return read(signal, (said) => {
      if (signal.aborted) return;
      hear(said);
      others.postMessage(said);
    });
  };
  if (navigator.locks) void navigator.locks.request(name, { signal }, lead).catch(() => {});
  else void lead();
  return () => {
    aborter.abort();
    others.close();
  };
}

/** Read the stream, again and again. */
async function read(signal: AbortSignal, tell: (said: Exclude<Said, "who">) => void): Promise<void> {
  let waitMs = FIRST_WAIT_MS;
  const tellState = (now: StreamState) => tell({ state: now, id: lastId });
  tellState("connecting");
  while (!signal.aborted) {
    try {
      const answer = await request("stream", { signal, headers: { Accept: "text/event-stream", ...(lastId && { "Last-Event-ID": lastId }) } });
      await listen(answer, (message) => {
        if (message.event !== "ready") return tell({ message });
        waitMs = FIRST_WAIT_MS;
        lastId = message.id;
        tellState("live");
      });
    } catch (error) {
      if (error instanceof Problem && !error.passing && error.status < 500) return tellState("stopped");
      if (error instanceof Problem) waitMs = Math.max(waitMs, (error.retryAfterS ?? 0) * 1000);
    }
    if (signal.aborted) return;
    tellState("reconnecting");
    await new Promise((done) => {
      setTimeout(done, waitMs);
      signal.addEventListener("abort", done);
    });
    waitMs = Math.min(waitMs * 2, LONGEST_WAIT_MS);
  }
}

/** Read until the connection ends. */
async function listen(answer: Response, hear: (message: Message) => void): Promise<void> {
  const reader = new MessageReader();
  const body = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const silence = setTimeout(() => void body.cancel(), SILENCE_MS);
    const { done, value } = await body.read().finally(() => clearTimeout(silence));
    if (done) return;
    for (const message of reader.push(value)) hear(message);
  }
}
