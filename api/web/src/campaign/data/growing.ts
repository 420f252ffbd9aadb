/** How much of a long list is in the page: the first few, and more as one scrolls towards the end of them; on paper
 * all are. */
import { type RefObject } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

/** Rows at first, as few as show that there is a table, and so many more each time: about a screen. */
const FIRST = 12;
const STEP = 30;
/** In pixels: the next rows are there before one sees that they were not. */
const NEAR = 1200;

/** of: another starts the list anew. Gives the rows to show, and what to put after the last of them. */
export function useGrowing<E extends Element>(of: unknown, most: number): [number, RefObject<E | null>] {
  const end = useRef<E>(null);
  const [grown, grow] = useState({ of, rows: FIRST });
  const rows = Math.min(most, grown.of === of ? grown.rows : FIRST);
  useLayoutEffect(() => {
    if (rows >= most || end.current === null) return;
    const near = (entries: IntersectionObserverEntry[]) => entries.some((entry) => entry.isIntersecting) && grow({ of, rows: rows + STEP });
    const observer = new IntersectionObserver(near, { rootMargin: `${NEAR}px` });
    observer.observe(end.current);
    const all = () => grow({ of, rows: most });
    addEventListener("beforeprint", all);
    return () => {
      observer.disconnect();
      removeEventListener("beforeprint", all);
    };
  }, [of, rows, most]);
  return [rows, end];
}
