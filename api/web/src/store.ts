/** A value that many components watch: they are drawn again only when the part they select changes. */
import { useEffect, useState } from "preact/hooks";

export class Store<T> {
  private readonly watchers = new Set<() => void>();

  constructor(private value: T) {}

  get(): T {
    return this.value;
  }

  set(value: T): void {
    if (Object.is(value, this.value)) return;
    this.value = value;
    for (const watcher of [...this.watchers]) watcher();
  }

  update(change: (value: T) => T): void {
    this.set(change(this.value));
  }

  /** Calls `watcher` after every change, until the returned function is called. */
  subscribe(watcher: () => void): () => void {
    this.watchers.add(watcher);
    return () => void this.watchers.delete(watcher);
  }
}

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
