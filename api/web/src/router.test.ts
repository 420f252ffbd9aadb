import { expect, test } from "vitest";
import { href, parseHash } from "./router";

test("every hash of the contract is a route", () => {
  const routes = ["", "#/", "#/new", "#/compare?campaign=a", "#/fit", "#/campaigns/c-1?tp=2", "#/campaigns/c-1/trials/12"].map((hash) => parseHash(hash).route);
  expect(routes).toEqual([
    { page: "campaigns" },
    { page: "campaigns" },
    { page: "new" },
    { page: "compare" },
    { page: "fit" },
    { page: "campaign", id: "c-1" },
    { page: "trial", id: "c-1", number: 12 },
  ]);
});

test("what is no route is unknown, not an error", () => {
  for (const hash of ["#/trials", "#/campaigns", "#/campaigns/a/b", "#/campaigns/a/trials/x", "#/new/more"])
    expect(parseHash(hash).route.page).toBe("unknown");
  expect(parseHash("#/campaigns/100%").route).toEqual({ page: "campaign", id: "100%" });
});

test("a link leads back to its route, with its query", () => {
  const route = { page: "trial", id: "a b/c", number: 3 } as const;
  const query = new URLSearchParams([["tp", "2"], ["tp", "4"], ["q", "a&b"]]);
  const place = parseHash(href(route, query));
  expect([place.route, [...place.query]]).toEqual([route, [...query]]);
  expect(href({ page: "compare" }, new URLSearchParams())).toBe("#/compare");
});
