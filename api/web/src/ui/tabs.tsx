/** One panel out of a few, whose tab says what it has; the arrow keys go from tab to tab. */
import type { ComponentChildren } from "preact";

interface TabsProps<T extends string> {
  label: string;
  tabs: readonly (readonly [T, ComponentChildren])[];
  value: T;
  onChange: (value: T) => void;
  children: ComponentChildren;
}

const STEPS: Readonly<Record<string, number>> = { ArrowLeft: -1, ArrowRight: 1 };

export function Tabs<T extends string>({ label, tabs, value, onChange, children }: TabsProps<T>) {
  const step = (event: KeyboardEvent) => {
    const by = STEPS[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const at = tabs.findIndex(([name]) => name === value);
    const [next] = tabs[(at + by + tabs.length) % tabs.length]!;
    onChange(next);
    document.getElementById(`tab-${next}`)?.focus();
  };
  return (
    <>
      <div class="tabs" role="tablist" aria-label={label} onKeyDown={step}>
        {tabs.map(([name, words]) => (
          <button
            type="button"
            key={name}
            id={`tab-${name}`}
            role="tab"
            aria-selected={name === value}
            aria-controls={name === value ? `panel-${name}` : undefined}
            tabIndex={name === value ? 0 : -1}
            onClick={() => onChange(name)}
            data-testid={`tab-${name}`}
          >
            {words}
          </button>
        ))}
      </div>
      <div id={`panel-${value}`} role="tabpanel" aria-labelledby={`tab-${value}`} class="tab-panel">
        {children}
      </div>
    </>
  );
}
