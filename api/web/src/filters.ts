/** The filters of a page live in the query of its hash, and nowhere else: a link shows what its sender saw. */
import { place, type Place } from "./router";
import { useStore } from "./use_store";

/** All values of one filter, empty where it is not set. */
export function filterValues(name: string, at: Place = place.get()): string[] {
  return at.query.getAll(name);
}

/** Set filters by name; null or [] removes one. The other filters stay, and the history gets no entry. */
export function setFilters(changes: Record<string, string | readonly string[] | null>): void {
  const query = new URLSearchParams(place.get().query);
  for (const [name, value] of Object.entries(changes)) {
    query.delete(name);
    const values = value === null ? [] : typeof value === "string" ? [value] : value;
    for (const one of values) query.append(name, one);
  }
  replaceQuery(query);
}

/** Remove every filter but those named, such as the sort. */
export function clearFilters(keep: readonly string[] = []): void {
  const old = [...place.get().query];
  replaceQuery(new URLSearchParams(old.filter(([name]) => keep.includes(name))));
}

function replaceQuery(query: URLSearchParams): void {
  const now = place.get();
  const text = query.toString();
  if (text === now.query.toString()) return;
  const path = location.hash.split("?")[0] || "#/";
  history.replaceState(null, "", path + (text && `?${text}`));
  place.set({ route: now.route, query });
}

/** The query of the hash; the component is drawn again when it changes. Equal queries are the same object. */
export function useFilters(): URLSearchParams {
  return useStore(place, (now) => now.query);
}

/** One filter with one value, "" where it is not set, and how to set it. */
export function useFilter(name: string): [string, (value: string) => void] {
  const value = useStore(place, (now) => now.query.get(name) ?? "");
  return [value, (next) => setFilters({ [name]: next || null })];
}
