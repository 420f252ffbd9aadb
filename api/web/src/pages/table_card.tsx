/** A table with its title, of rows that are all alike. */
import type { ComponentChildren } from "preact";
import { Card } from "../ui/basics";
import { TableFrame } from "../ui/table";

interface TableProps {
  title: string;
  /** The first is of the rows' names. */
  heads: readonly ComponentChildren[];
  /** What the other columns are by their heads: words; else numbers. */
  words?: (head: ComponentChildren) => boolean;
  testid?: string;
  children: readonly (readonly ComponentChildren[])[];
}

export function Table({ title, heads, words = () => false, testid, children }: TableProps) {
  const looks = heads.map((head, at) => (at && !words(head) ? "num" : undefined));
  return (
    <Card title={title}>
      <TableFrame label={title} testid={testid} dense>
        <thead>
          <tr>
            {heads.map((head, at) => <th key={at} scope="col" class={looks[at]}>{head}</th>)}
          </tr>
        </thead>
        <tbody>
          {children.map(([name, ...cells], row) => (
            <tr key={row}>
              <th scope="row">{name}</th>
              {cells.map((cell, at) => <td key={at} class={looks[at + 1]}>{cell}</td>)}
            </tr>
          ))}
        </tbody>
      </TableFrame>
    </Card>
  );
}
