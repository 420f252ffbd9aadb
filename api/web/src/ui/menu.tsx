/** What is not needed at every look: a button that opens a list. Esc, a click elsewhere and a choice close it. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

interface MenuProps {
  label: string;
  /** Where the label is a sign. */
  name?: string;
  /** It stays open while one ticks and unticks. */
  stays?: boolean;
  testid?: string;
  children: ComponentChildren;
}

export function Menu({ label, name, stays = false, testid, children }: MenuProps) {
  const element = useRef<HTMLDetailsElement>(null);
  const shut = () => element.current?.removeAttribute("open");
  useEffect(() => {
    const elsewhere = (event: Event) => element.current?.contains(event.target as Node) || shut();
    addEventListener("click", elsewhere);
    return () => removeEventListener("click", elsewhere);
  }, []);
  const escape = (event: KeyboardEvent) => {
    if (event.key !== "Escape") return;
    shut();
    element.current?.querySelector("summary")?.focus();
  };
  return (
    <details ref={element} class="menu" data-testid={testid} onKeyDown={escape}>
      <summary class="button" aria-label={name}>{label}</summary>
      <div class="menu-inside" onClick={stays ? undefined : shut}>{children}</div>
    </details>
  );
}
