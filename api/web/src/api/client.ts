/** Requests to /v1 with the bearer token. Paths are below v1/, as in `get("campaigns?state=running")`. */
import { token } from "./token";
import { asProblem, Problem, problemOf } from "./problem";

const MOST_KEPT = 200;
/** A service that names a wait is asked again by itself: one that is busy so often, and one in trouble twice. */
const RETRIES = { 429: 20, 503: 2 } as Record<number, number>;
const LONGEST_WAIT_S = 30;

const kept = new Map<string, { etag: string; document: unknown }>();
/** What first.js asked for before this code had come: each answer is the next request's of its path. */
const ahead = () => (globalThis as { asked?: Map<string, Promise<Response>> }).asked;
let onUnauthorized: (problem: Problem) => void = () => {};

/** Who is told of a 401: the session, which asks for a token. */
export function tellUnauthorized(listener: (problem: Problem) => void): void {
  onUnauthorized = listener;
}

/** Forget what was read under another token. */
export function forget(): void {
  kept.clear();
  ahead()?.clear();
}

/** The address of a path below v1/, relative to the page, which may lie behind a path prefix. */
export function address(path: string): string {
  return new URL(`v1/${path}`, document.baseURI.split("#")[0]).toString();
}

/** The path with this query; null and undefined are left out, an array is repeated. */
export function withQuery(path: string, query: Record<string, string | number | boolean | readonly (string | number)[] | null | undefined>): string {
  const given = Object.entries(query).flatMap(([name, value]) => [value ?? []].flat().map((one) => [name, String(one)]));
  const text = new URLSearchParams(given).toString();
  return text ? `${path}?${text}` : path;
}

/** The bare answer, any 2xx or 304; everything else throws a Problem. An aborted request throws its AbortError. */
export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  const secret = token.get();
  if (secret) headers.set("Authorization", `Bearer ${secret}`);
  let answer: Response;
  const asked = ahead()?.get(path);
  ahead()?.delete(path);
  try {
    answer = await (asked ?? fetch(address(path), { ...init, headers, cache: "no-store" }));
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw asProblem(error);
  }
  if (answer.ok || answer.status === 304) return answer;
  const problem = await problemOf(answer);
  if (problem.status === 401 && secret === token.get()) onUnauthorized(problem);
  throw problem;
}

/** A document. Where the service says that it has not changed (304), this is the very object of the last read. */
export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const last = kept.get(path);
  const answer = await patiently(path, last ? { "If-None-Match": last.etag } : {}, signal);
  if (answer.status === 304 && last) return last.document as T;
  const document = (await answer.json()) as T;
  const etag = answer.headers.get("ETag");
  kept.delete(path);
  if (etag) kept.set(path, { etag, document });
  if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value!); // the oldest
  return document;
}

export interface Body {
  /** A string is sent as it is, with `type`; anything else as JSON. */
  body?: unknown;
  type?: string;
  /** Makes a repeated POST start nothing twice. */
  idempotencyKey?: string;
  /** Of the campaign; a 412 where somebody else has changed it since. */
  version?: string;
  signal?: AbortSignal;
}

/** A JSON merge patch (RFC 7396) of a campaign of this version. */
export async function patch<T>(path: string, body: unknown, version: string): Promise<T> {
  return post<T>(path, { body, version }, "PATCH");
}

export async function post<T>(path: string, { body, type, idempotencyKey, version, signal }: Body = {}, method = "POST"): Promise<T> {
  const headers: Record<string, string> = {};
  if (body !== undefined) headers["Content-Type"] = type ?? "application/json";
  if (idempotencyKey) headers["Idempotency-Key"] = idempotencyKey;
  if (version) headers["If-Match"] = `"${version}"`;
  const text = body === undefined ? null : typeof body === "string" ? body : JSON.stringify(body);
  const answer = await request(path, { method, headers, body: text, signal: signal ?? null });
  return (await answer.json()) as T;
}

/** A new Idempotency-Key. Not crypto.randomUUID, which plain http does not have. */
export function newKey(): string {
  const random = crypto.getRandomValues(new Uint8Array(16));
  return [...random].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export interface TextPart {
  text: string;
  /** Bytes of the whole file, null where the service does not say. */
  total: number | null;
}

/** A text such as a log. range: as in the header, "bytes=-65536" for the end; 416 (nothing there yet) is "". */
export async function text(path: string, range?: string, signal?: AbortSignal): Promise<TextPart> {
  try {
    const answer = await patiently(path, range ? { Range: range } : {}, signal);
    const whole = /\/(\d+)$/.exec(answer.headers.get("Content-Range") ?? "")?.[1];
    return { text: await answer.text(), total: whole === undefined ? null : Number(whole) };
  } catch (error) {
    if (error instanceof Problem && error.status === 416) return { text: "", total: 0 };
    throw error;
  }
}

async function patiently(path: string, headers: Record<string, string>, signal: AbortSignal | undefined): Promise<Response> {
  for (let tried = 0; ; tried++) {
    try {
      return await request(path, { headers, signal: signal ?? null });
    } catch (error) {
      if (!(error instanceof Problem) || tried >= (RETRIES[error.status] ?? 0)) throw error;
      const wait = error.retryAfterS ?? Infinity;
      if (wait > LONGEST_WAIT_S) throw error;
      await new Promise((done) => setTimeout(done, wait * 1000));
      signal?.throwIfAborted();
    }
  }
}
