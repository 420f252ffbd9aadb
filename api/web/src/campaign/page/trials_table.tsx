/** The settings that pass the filters, in the order asked for; a row opens its first trial. */
import type { VNode } from "preact";
import { useMemo } from "preact/hooks";
import { setFilters, useFilter, useFilters } from "../../filters";
import { go, href } from "../../router";
import { Button, Card } from "../../ui/basics";
import { Menu } from "../../ui/menu";
import { EmptyState } from "../../ui/states";
import { Head, parseSort, sortText, TableFrame } from "../../ui/table";
import { clearConditions } from "../data/conditions";
import type { Column } from "./columns";
import type { Filters } from "../data/filters";
import { useGrowing } from "../data/growing";
import { useRemembered } from "../data/remembered";
import { MOST, pick, pickedOf } from "../data/picked";
import { inOrder } from "../data/rows";
import type { Setting } from "../data/settings";

/** Where a row is a card: what says most, and the whole plan as one. Others can be ticked. */
const ON_PHONES = ["number", "verdict", "setting", "objective", "gain", "memory"];

interface TrialsTableProps {
  bar: (menu: VNode) => VNode;
  campaign: string;
  columns: readonly Column[];
  shown: readonly Setting[];
  filters: Filters;
  /** Before filtering. */
  all: number;
  /** Best first, whichever way the objective counts. */
  bestFirst: string;
}

export function TrialsTable({ bar, campaign, columns, shown, filters, all, bestFirst }: TrialsTableProps) {
  const [asked] = useFilter("sort");
  const [choice, remember] = useRemembered<Readonly<Record<string, boolean>>>("meshtune.columns", {});
  const sort = parseSort(asked || bestFirst);
  const order = useMemo(() => inOrder(shown, sort), [shown, sort.key, sort.descending]);
  const narrow = matchMedia("(max-width: 640px)").matches; // as campaign.css has it
  const isShown = ({ name, hidden }: Column) => choice[name] ?? !hidden;
  const visible = useMemo(() => columns.filter((one) => (narrow ? ON_PHONES.includes(one.name) || choice[one.name] : isShown(one))), [columns, choice, narrow]);
  // A sorted or filtered table is looked at from its top; one that trials are added to stays as it is.
  const look = useMemo(() => ({}), [filters, sort.key, sort.descending]);
  const [rows, end] = useGrowing<HTMLDivElement>(look, order.length);
  const drawn = useRows(order.slice(0, rows), visible);
  const menu = (
    <Menu label="Columns" stays>
      {columns.slice(1).map((column) => (
        <label key={column.name}>
          <input type="checkbox" checked={isShown(column)} onChange={() => remember({ ...choice, [column.name]: !isShown(column) })} />
          {column.head}
        </label>
      ))}
    </Menu>
  );
  return (
    <>
      {bar(menu)}
      <Card class="trials" testid="trials">
        {order.length === 0 ? (
          <EmptyState title={all === 0 ? "No trial was planned yet" : "No setting passes the filters"}>
            {all > 0 && <Button onClick={clearConditions}>Clear all filters</Button>}
          </EmptyState>
        ) : (
          <TableFrame label="Trials" testid="trials-table">
            <thead>
              <tr>
                <th scope="col"><span class="visually-hidden">Side by side</span></th>
                {visible.map((column) => (
                  <Head {...column} key={column.name} by={column.name} sort={sort} onSort={(next) => setFilters({ sort: sortText(next) })}>
                    {column.head}
                  </Head>
                ))}
              </tr>
            </thead>
            <tbody onClick={(event) => open(event, campaign)} onKeyDown={step}>
              {drawn}
            </tbody>
          </TableFrame>
        )}
        <div ref={end} />
      </Card>
    </>
  );
}

/** Rows that are kept for a trial and the columns, so that sorting and a live update redraw only what is new. */
function useRows(trials: readonly Setting[], columns: readonly Column[]): VNode[] {
  const rows = useMemo(() => new WeakMap<Setting, VNode>(), [columns]);
  return trials.map((trial) => {
    const before = rows.get(trial);
    if (before) return before;
    const row = (
      <tr key={trial.number} data-trial={trial.number} data-testid={`row-${trial.number}`}>
        <td><Pick number={trial.number} /></td>
        {columns.map(({ name, numeric, head, cell }) => <td key={name} class={numeric ? "num" : undefined} data-label={head}>{cell(trial)}</td>)}
      </tr>
    );
    rows.set(trial, row);
    return row;
  });
}

function open(event: MouseEvent, campaign: string): void {
  const target = event.target as Element;
  const number = target.closest("tr")?.dataset["trial"];
  // A link opens by itself, and a selected text is to be copied.
  if (number === undefined || target.closest("a, input") || getSelection()?.type === "Range") return;
  go(href({ page: "trial", id: campaign, number: Number(number) }));
}

/** Up and down go from row to row. */
function step(event: KeyboardEvent): void {
  if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
  const row = (event.target as Element).closest("tr");
  const next = event.key === "ArrowDown" ? row?.nextElementSibling : row?.previousElementSibling;
  next?.querySelector("a")?.focus();
  event.preventDefault();
}

function Pick({ number }: { number: number }) {
  const picked = pickedOf(useFilters());
  const ticked = picked.includes(number);
  return (
    <input
      type="checkbox"
      aria-label={`Lay trial ${number} beside others`}
      checked={ticked}
      disabled={picked.length >= MOST && !ticked}
      onChange={() => pick(ticked ? picked.filter((one) => one !== number) : [...picked, number])}
    />
  );
}
