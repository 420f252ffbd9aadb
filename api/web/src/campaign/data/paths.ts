/** Where a campaign's documents are, below v1/: apart from the page, which asks for them before its code has come. */
import { withQuery } from "../../api/client";

/** Of trials at once: the most that the service gives. */
export const PAGE = 1000;

export function campaignPath(id: string): string {
  return `campaigns/${encodeURIComponent(id)}`;
}

export function trialsPath(id: string, pageToken: string | null): string {
  return withQuery(`${campaignPath(id)}/trials`, { view: "brief", page_size: PAGE, page_token: pageToken });
}
