import { expect, test } from "vitest";
import { readsOf } from "./reads";
import { parseHash } from "./router";

test("a campaign's page begins with the campaign and its trials, other pages with nothing that is known ahead", () => {
  expect(readsOf(parseHash("#/campaigns/a%20b?tp=2..4").route)).toEqual([
    "campaigns/a%20b",
    "campaigns/a%20b/trials?view=brief&page_size=1000",
  ]);
  for (const hash of ["", "#/new", "#/compare", "#/campaigns/c1/trials/3"]) expect(readsOf(parseHash(hash).route)).toEqual([]);
});
