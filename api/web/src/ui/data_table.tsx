/** A table of these rows, whose first cell names the row. */
import type { ComponentChildren } from "preact";
import { TableFrame } from "./table";

interface DataTableProps {
  label: string;
  testid?: string;
  heads: readonly ComponentChildren[];
  rows: readonly (readonly ComponentChildren[])[];
  /** All columns but the first are of numbers. */
  numeric?: boolean;
}

export function DataTable({ label, testid, heads, rows, numeric = false }: DataTableProps) {
  const look = (at: number) => (numeric && at > 0 ? "num" : undefined);
  return (
    <TableFrame label={label} testid={testid} dense>
      <thead>
        <tr>{heads.map((head, at) => <th key={at} scope="col" class={look(at)}>{head}</th>)}</tr>
      </thead>
      <tbody>
        {rows.map((cells, at) => (
          <tr key={at}>{cells.map((cell, at) => (at === 0 ? <th key={at} scope="row">{cell}</th> : <td key={at} class={look(at)}>{cell}</td>))}</tr>
        ))}
      </tbody>
    </TableFrame>
  );
}
