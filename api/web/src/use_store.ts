/** A component that watches a store: it is drawn again only when the part it selects changes. */
import { useEffect, useState } from "preact/hooks";
import type { Store } from "./store";

export function useStore<T>(store: Store<T>): T;
export function useStore<T, S>(store: Store<T>, select: (value: T) => S): S;
export function useStore<T, S>(store: Store<T>, select?: (value: T) => S): T | S {
  const pick = () => (select ? select(store.get()) : store.get());
  const [, redraw] = useState({});
  const picked = pick();
  useEffect(() => {
    let last = picked;
    const look = () => {
      const now = pick();
      if (Object.is(now, last)) return;
      last = now;
      redraw({});
    };
    look(); // it may have changed between drawing and this effect
    return store.subscribe(look);
    // eslint-disable-next-line -- `select` is a new function at each drawing and always means the same
  }, [store]);
  return picked;
}
