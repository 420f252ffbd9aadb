/** The heading of a page, which gets the focus: a keyboard goes on from there, and a screen reader says where one is. */
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

let last: string | null = null;

export function Title({ children }: { children: ComponentChildren }) {
  const element = useRef<HTMLHeadingElement>(null);
  useLayoutEffect(() => {
    const path = location.hash.split("?")[0] || "#/";
    if (last !== null && last !== path) element.current?.focus({ preventScroll: true });
    last = path;
  }, []);
  return <h1 ref={element} tabIndex={-1}>{children}</h1>;
}
