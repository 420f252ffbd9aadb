import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { forget, get } from "./client";
import { Problem } from "./problem";

const asked: Request[] = [];
let answers: (() => Response)[] = [];

const answerOf = (value: unknown, etag: string) => () => Response.json(value, { headers: { ETag: etag } });

beforeEach(() => {
  vi.stubGlobal("document", { baseURI: "http://service/prefix/#/campaigns/c1" });
  vi.stubGlobal("fetch", async (url: string, init: RequestInit) => {
    asked.push(new Request(url, init));
    return answers.shift()!();
  });
});

afterEach(() => {
  vi.unstubAllGlobals();
  forget();
  asked.length = 0;
});

/** As first.js does. */
function askAhead(path: string): void {
  vi.stubGlobal("asked", new Map([[path, fetch(`http://service/prefix/v1/${path}`)]]));
}

test("what was asked ahead is one request, and the first reader has its answer", async () => {
  answers = [answerOf({ id: "c1" }, '"a"')];
  askAhead("campaigns/c1");
  expect(await get("campaigns/c1")).toEqual({ id: "c1" });
  expect(asked.map((request) => request.url)).toEqual(["http://service/prefix/v1/campaigns/c1"]);
});

test("the second reader asks the service, which may say that nothing has changed", async () => {
  answers = [answerOf({ id: "c1" }, '"a"'), () => new Response(null, { status: 304 })];
  askAhead("campaigns/c1");
  const first = await get("campaigns/c1");
  expect(await get("campaigns/c1")).toBe(first);
  expect(asked.map((request) => request.headers.get("If-None-Match"))).toEqual([null, '"a"']);
});

test("a refusal of what was asked ahead is told to its reader, and the next one asks anew", async () => {
  answers = [() => Response.json({ title: "There is no such campaign" }, { status: 404 }), answerOf({ id: "c1" }, '"a"')];
  askAhead("campaigns/c1");
  await expect(get("campaigns/c1")).rejects.toBeInstanceOf(Problem);
  expect(await get("campaigns/c1")).toEqual({ id: "c1" });
});

test("what was asked ahead under another token is given to nobody", async () => {
  answers = [answerOf({ id: "theirs" }, '"a"'), answerOf({ id: "mine" }, '"b"')];
  askAhead("campaigns/c1");
  forget();
  expect(await get("campaigns/c1")).toEqual({ id: "mine" });
});

test("a busy service is asked again when it says so, until it answers", async () => {
  vi.useFakeTimers();
  const busy = () => new Response("{}", { status: 429, headers: { "Retry-After": "12" } });
  answers = [busy, busy, busy, answerOf({ id: "c1" }, '"a"')];
  const read = get("campaigns/c1/analysis");
  await vi.advanceTimersByTimeAsync(36_000);
  expect(await read).toEqual({ id: "c1" });
  vi.useRealTimers();
});
