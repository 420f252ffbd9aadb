/** Hash routes, so that the page works behind any path prefix: `#/campaigns/{id}?filters` and the others of `Route`. */
import { takeToken } from "./api/token"; // whose module takes a token out of the hash before the hash is read here
import { Store } from "./store";

export type Route =
  | { page: "campaigns" }
  | { page: "new" }
  | { page: "compare" }
  | { page: "fit" }
  | { page: "campaign"; id: string }
  | { page: "trial"; id: string; number: number }
  | { page: "unknown"; path: string };

/** The hash as a route and its query; the query is the page's filters. */
export interface Place {
  route: Route;
  query: URLSearchParams;
}

export function parseHash(hash: string): Place {
  const [path = "", query = ""] = split(hash.replace(/^#/, ""));
  return { route: parsePath(path), query: new URLSearchParams(query) };
}

function split(text: string): [string, string] {
  const at = text.indexOf("?");
  return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 1)];
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
  const text = query === undefined ? "" : new URLSearchParams(query).toString();
  return pathOf(route) + (text && `?${text}`);
}

function pathOf(route: Exclude<Route, { page: "unknown" }>): string {
  switch (route.page) {
    case "campaigns":
      return "#/";
    case "campaign":
      return `#/campaigns/${encodeURIComponent(route.id)}`;
    case "trial":
      return `#/campaigns/${encodeURIComponent(route.id)}/trials/${route.number}`;
    default:
      return `#/${route.page}`;
  }
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
  if (!replace) {
    location.hash = hash;
    return;
  }
  history.replaceState(null, "", hash);
  place.set(parseHash(hash));
}
