/** How wide the place of a chart is. */
import type { RefObject } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { afterFrame } from "./frames";

/** An element and the width that it has now; 0 before it is laid out. What is below the screen is told its width after
 * the first frame, which it would only hold up. */
export function useWidth<E extends HTMLElement>(): [RefObject<E | null>, number] {
  const element = useRef<E>(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const box = element.current!;
    const { top, width } = box.getBoundingClientRect();
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry!.contentRect.width)));
    let cancel = () => {};
    if (top < innerHeight) {
      setWidth(Math.floor(width));
      observer.observe(box);
    } else {
      cancel = afterFrame(() => observer.observe(box));
    }
    return () => {
      cancel();
      observer.disconnect();
    };
  }, []);
  return [element, width];
}
