/** The parts of a table: a head that sorts by keyboard and mouse, and a frame that scrolls sideways on a phone. */
import type { ComponentChildren } from "preact";

export interface Sort {
  key: string;
  descending: boolean;
}

/** "-created_at" as a Sort, and back: as the API and the filters in the hash write it. */
export function parseSort(text: string): Sort {
  return text.startsWith("-") ? { key: text.slice(1), descending: true } : { key: text, descending: false };
}

export function sortText(sort: Sort): string {
  return (sort.descending ? "-" : "") + sort.key;
}

interface HeadProps {
  sort: Sort;
  onSort: (sort: Sort) => void;
  /** What the column sorts by; without one it does not sort. */
  by?: string;
  /** A first click sorts downwards. */
  descendingFirst?: boolean;
  numeric?: boolean;
  title?: string;
  children: ComponentChildren;
}

export function Head({ sort, onSort, by, descendingFirst = false, numeric = false, title, children }: HeadProps) {
  const mine = by !== undefined && sort.key === by;
  const order = mine ? (sort.descending ? "descending" : "ascending") : undefined;
  return (
    <th scope="col" class={numeric ? "num" : undefined} aria-sort={order} title={title}>
      {by === undefined ? (
        children
      ) : (
        <button type="button" onClick={() => onSort({ key: by, descending: mine ? !sort.descending : descendingFirst })}>
          {children}
          <span class="arrow" aria-hidden="true">{mine && (sort.descending ? "▼" : "▲")}</span>
        </button>
      )}
    </th>
  );
}

export function TableFrame({ label, testid, dense = false, children }: { label: string; testid?: string; dense?: boolean; children: ComponentChildren }) {
  return (
    <div class="table-frame" tabIndex={0} role="region" aria-label={label}>
      <table class={dense ? "dense" : undefined} data-testid={testid}>{children}</table>
    </div>
  );
}
