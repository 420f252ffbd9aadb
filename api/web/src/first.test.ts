import { afterEach, expect, test, vi } from "vitest";
import { campaignPath, trialsPath } from "./campaign/data/paths";
import first from "./first.js?raw";
import { href } from "./router";

afterEach(() => vi.unstubAllGlobals());

/** What it asks for at such an address. */
function asks(hash: string, secret: string | null): string[] {
  const asked: [string, RequestInit][] = [];
  let tried: string | null = null;
  vi.stubGlobal("localStorage", { getItem: () => secret }); // it stays
  vi.stubGlobal("sessionStorage", { getItem: () => tried, setItem: (_: string, value: string) => (tried = value) });
  vi.stubGlobal("location", { hash, pathname: "/", search: "" });
  vi.stubGlobal("history", { replaceState: (...given: unknown[]) => expect(given).toEqual([null, "", "/"]) });
  vi.stubGlobal("fetch", (...request: [string, RequestInit]) => asked.push(request));
  new Function(first)();
  for (const [, { headers }] of asked) expect(headers).toEqual({ Authorization: `Bearer ${tried ?? secret}` });
  if (hash.includes("token=")) expect(hash).toContain(tried);
  return asked.map(([url]) => url);
}

test("a campaign's page is asked for by the very paths that it reads, with its filters or without", () => {
  const paths = [campaignPath("a b"), trialsPath("a b", null), "whoami"].map((path) => `v1/${path}`);
  expect(asks(href({ page: "campaign", id: "a b" }), "mt_x")).toEqual(paths);
  expect(asks(href({ page: "campaign", id: "a b" }, { tp: "2..4" }), "mt_x")).toEqual(paths);
});

test("other pages begin with nothing that is known ahead, and without a token nothing is asked", () => {
  for (const hash of ["", "#/new", "#/compare", "#/campaigns/c1/trials/3"]) expect(asks(hash, "mt_x")).toEqual(["v1/whoami"]);
  expect(asks("#/campaigns/c1", null)).toEqual([]);
});

test("the token of a link is asked with, whatever token was kept before", () => {
  for (const secret of ["mt_old", null]) expect(asks("#token=mt_new", secret)).toEqual(["v1/whoami"]);
});
