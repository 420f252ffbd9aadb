/** The filters as the page holds them: read from the address, written to it, and said in words. */
import { useMemo } from "preact/hooks";
import { clearFilters, setFilters, useFilters } from "../../filters";
import { wordOf } from "../../words";
import { type Condition, type Filters, OTHER_KEYS, readFilters, written } from "./filters";
import type { Goal } from "./goal";
import { quantityLabel, quantityWords } from "./quantities";

export { wordOf };

export function useConditions(): Filters {
  const query = useFilters();
  // A sort or a pick changes none of them: what was filtered stays as it is.
  const conditions = [...query].filter(([name]) => name === "text" || !OTHER_KEYS.has(name)).join("&");
  return useMemo(() => readFilters(query), [conditions]);
}

/** Null takes a condition away. */
export function setConditions(changes: Readonly<Record<string, Condition | null>>): void {
  const entries = Object.entries(changes).map(([name, condition]) => [name, condition && written(name, condition)] as const);
  setFilters(Object.fromEntries(entries));
}

export function clearConditions(): void {
  clearFilters([...OTHER_KEYS].filter((name) => name !== "text"));
}

/** "tp 2 to 4", "recompute none or full", "memory 20 GiB to 40 GiB". */
export function conditionWords(name: string, condition: Condition, goal: Goal): string {
  const label = quantityLabel(name, goal);
  if (condition.kind === "words") return `${label} ${condition.words.map(wordOf).join(" or ")}`;
  const [low, high] = [condition.low, condition.high].map((end) => quantityWords(name, end, goal));
  return low === high ? `${label} ${low}` : `${label} ${low} to ${high}`;
}
