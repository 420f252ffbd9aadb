/** A component that watches a store: it is drawn again only when the part it selects changes. */
import { useEffect, useState } from "preact/hooks";
import type { Store } from "./store";

/** select: a new function at each drawing, that always means the same. */
export function useStore<T, S = T>(store: Store<T>, select = (value: T) => value as unknown as S): S {
  const [, redraw] = useState({});
  const picked = select(store.get());
  useEffect(() => {
    let last = picked;
    const look = () => {
      const now = select(store.get());
      if (Object.is(now, last)) return;
      last = now;
      redraw({});
    };
    look(); // it may have changed between drawing and this effect
    return store.subscribe(look);
  }, [store]);
  return picked;
}
