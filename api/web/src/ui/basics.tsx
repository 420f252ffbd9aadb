/** The plain parts that every page is made of. */
import type { AnchorHTMLAttributes, ButtonHTMLAttributes, ComponentChildren } from "preact";
import { href } from "../router";
import type { Tone } from "../words";

export type ButtonProps = Omit<ButtonHTMLAttributes<HTMLButtonElement>, "size"> & {
  kind?: "primary" | "plain" | "danger" | "quiet" | "link";
  /** Shows that the action is under way, and takes no second click. */
  busy?: boolean;
};

export function Button({ kind = "plain", busy = false, class: more, children, ...rest }: ButtonProps) {
  return (
    <button type="button" {...rest} class={`${kind === "link" ? "json-link" : `button ${kind}`} ${more ?? ""}`} disabled={rest.disabled || busy} aria-busy={busy}>
      {children}
    </button>
  );
}

export function ButtonLink({ kind = "plain", ...rest }: AnchorHTMLAttributes<HTMLAnchorElement> & { kind?: "primary" | "plain" | "quiet" }) {
  return <a {...rest} class={`button ${kind}`} />;
}

interface CardProps {
  title?: ComponentChildren;
  aside?: ComponentChildren;
  class?: string;
  testid?: string;
  children: ComponentChildren;
}

/** The heading's line has a fixed height, so that chips in it shift nothing. */
export function Card({ title, aside, class: more = "", testid, children }: CardProps) {
  return (
    <section class={`card ${more}`} data-testid={testid}>
      {(title || aside) && (
        <header class="card-head">
          {title && <h2>{title}</h2>}
          {aside && <div class="card-aside">{aside}</div>}
        </header>
      )}
      {children}
    </section>
  );
}

interface ChipProps {
  tone?: Tone;
  /** Of a chip that filters: pressed or not. */
  pressed?: boolean;
  onClick?: () => void;
  /** Of a chip that can be taken away. */
  onRemove?: () => void;
  title?: string;
  testid?: string;
  children: ComponentChildren;
}

export function Dot({ tone }: { tone: Tone }) {
  return <span class={`dot tone-${tone}`} aria-hidden="true" />;
}

/** A word with its colour as a dot; a button where it does something. */
export function Chip({ tone, pressed, onClick, onRemove, title, testid, children }: ChipProps) {
  const act = onClick ?? onRemove;
  const parts = [tone && <Dot tone={tone} />, children, onRemove && <span role="img" aria-label="remove">×</span>];
  if (!act) return <span class="chip still" title={title} data-testid={testid}>{parts}</span>;
  return (
    <button type="button" class="chip" aria-pressed={pressed} onClick={act} title={title ?? (onRemove && "Remove this filter")} data-testid={testid}>
      {parts}
    </button>
  );
}

interface TileProps {
  label: string;
  /** No device ran what the figure is of. */
  simulated?: boolean;
  value: ComponentChildren;
  note?: ComponentChildren;
  testid?: string;
}

/** The note's room is kept when it is empty. */
export function Tile({ label, simulated = false, value, note, testid }: TileProps) {
  return (
    <section class="card tile" data-testid={testid}>
      <h2 class="tile-label small muted">
        {label}
        {simulated && <em>simulated</em>}
      </h2>
      <div class="tile-value">{value}</div>
      <div class="small muted">{note ?? "\u00a0"}</div>
    </section>
  );
}

export function TrialLink({ campaign, number, children = `trial ${number}` }: { campaign: string; number: number; children?: ComponentChildren }) {
  return <a href={href({ page: "trial", id: campaign, number })}>{children}</a>;
}

export function Tags({ tags }: { tags: readonly string[] }) {
  if (tags.length === 0) return null;
  return (
    <p class="row tags" data-testid="tags">
      {tags.map((tag) => (
        <a key={tag} class="chip" href={href({ page: "campaigns" }, { tag })}>{tag}</a>
      ))}
    </p>
  );
}

/** done of total as a thin bar; total null: no limit, so no bar, only its room. */
export function Progress({ done, total, label }: { done: number; total: number | null; label: string }) {
  if (!total) return <div class="progress empty" />;
  return (
    <div class="progress" role="progressbar" aria-label={label} aria-valuemin={0} aria-valuemax={total} aria-valuenow={Math.min(done, total)}>
      <div style={{ width: `${Math.min(1, done / total) * 100}%` }} />
    </div>
  );
}

export function Field({ label, hint, mistake, children }: { label: string; hint?: string; mistake?: string | undefined; children: ComponentChildren }) {
  return (
    <label class="field">
      <span class="small muted">{label}</span>
      {children}
      {hint && <span class="muted small">{hint}</span>}
      {mistake && <span class="mistake small">{mistake}</span>}
    </label>
  );
}

/** A sentence of the service; what it has in backquotes is code. */
export function Prose({ text }: { text: string }) {
  return <>{text.split("`").map((piece, at) => (at % 2 ? <code key={at}>{piece}</code> : piece))}</>;
}

/** One choice out of a few, all visible: a switch between views. */
export function Switch<T extends string>({ label, options, value, onChange }: { label: string; options: readonly (readonly [T, string])[]; value: T; onChange: (value: T) => void }) {
  return (
    <div class="switch" role="group" aria-label={label}>
      {options.map(([name, words]) => (
        <button type="button" key={name} aria-pressed={name === value} onClick={() => onChange(name)}>{words}</button>
      ))}
    </div>
  );
}
