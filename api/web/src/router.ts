/** Hash routes, so that the page works behind any path prefix: `#/campaigns/{id}?filters` and the others of `Route`. */
import { takeToken } from "./api/token"; // whose module takes a token out of the hash before the hash is read here
import { Store } from "./store";

export type Route =
  | { page: "campaigns" | "new" | "compare" | "fit" }
  | { page: "campaign"; id: string }
  | { page: "trial"; id: string; number: number }
  | { page: "unknown"; path: string };

/** The hash as a route and its query; the query is the page's filters. */
export interface Place {
  route: Route;
  query: URLSearchParams;
}

export function parseHash(hash: string): Place {
  const [path = "", ...query] = hash.replace(/^#/, "").split("?");
  return { route: parsePath(path), query: new URLSearchParams(query.join("?")) };
}

function parsePath(path: string): Route {
  const parts = path.split("/").filter(Boolean).map(decode);
  const [first, id, third, number] = parts;
  if (first === undefined) return { page: "campaigns" };
  if (parts.length === 1 && (first === "new" || first === "compare" || first === "fit")) return { page: first };
  if (first === "campaigns" && id !== undefined) {
    if (parts.length === 2) return { page: "campaign", id };
    if (parts.length === 4 && third === "trials" && number !== undefined && /^\d+$/.test(number))
      return { page: "trial", id, number: Number(number) };
  }
  return { page: "unknown", path };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a lone "%", typed by hand
  }
}

/** The hash of a route, with a query where one is given: what an `<a href>` takes. */
export function href(route: Exclude<Route, { page: "unknown" }>, query?: URLSearchParams | Record<string, string> | string[][]): string {
  const text = new URLSearchParams(query).toString();
  const page = "id" in route ? `campaigns/${encodeURIComponent(route.id)}` : route.page === "campaigns" ? "" : route.page;
  return `#/${page}${"number" in route ? `/trials/${route.number}` : ""}${text && `?${text}`}`;
}

/** Where the page is now. */
export const place = new Store<Place>(parseHash(typeof location === "undefined" ? "" : location.hash));

/** Follow the address bar; called once. */
export function followHash(): void {
  addEventListener("hashchange", () => {
    if (takeToken()) location.reload(); // nothing that was read for somebody else is shown
    else place.set(parseHash(location.hash));
  });
}

/** Go to a hash, with an entry in the history; `replace`: without one. */
export function go(hash: string, replace = false): void {
  if (hash === location.hash) return;
  if (!replace) return void (location.hash = hash);
  history.replaceState(null, "", hash);
  place.set(parseHash(hash));
}
