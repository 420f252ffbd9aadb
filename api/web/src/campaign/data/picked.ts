/** Which trials are laid side by side: in the address, as a link shows what its sender saw. */
import { setFilters } from "../../filters";

export const MOST = 5;

export function pickedOf(query: URLSearchParams): number[] {
  const numbers = query.getAll("pick").filter((word) => /^\d+$/.test(word)).map(Number);
  return [...new Set(numbers)].slice(0, MOST);
}

export function pick(numbers: readonly number[]): void {
  setFilters({ pick: numbers.map(String) });
}
