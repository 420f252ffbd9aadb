/** The documents that a page begins with, below v1/: apart from the page, as they are asked for before its code has come. */
import { campaignPath, trialsPath } from "./campaign/data/paths";
import type { Route } from "./router";

export function readsOf(route: Route): readonly string[] {
  return route.page === "campaign" ? [campaignPath(route.id), trialsPath(route.id, null)] : [];
}
