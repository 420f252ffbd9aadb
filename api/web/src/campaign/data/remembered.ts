/** A choice that this browser remembers. */
import { useState } from "preact/hooks";

export function useRemembered<T>(key: string, first: T): [T, (value: T) => void] {
  const [value, setValue] = useState<T>(() => {
    try {
      return (JSON.parse(localStorage.getItem(key) ?? "null") as T | null) ?? first;
    } catch {
      return first;
    }
  });
  const remember = (next: T) => {
    localStorage.setItem(key, JSON.stringify(next));
    setValue(next);
  };
  return [value, remember];
}
