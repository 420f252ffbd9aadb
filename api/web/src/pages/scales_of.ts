/** Which of some campaigns scale one training. */
import type { ComparedCampaign } from "../api/types";

/** Those that the service measures against one and the same, where they ran on different numbers of devices: on each number
 * the fastest, in the order of devices. */
export function scalesOf<Row extends Pick<ComparedCampaign, "devices" | "efficiency_against" | "recommended">>(rows: readonly Row[]): Row[][] {
  const kinds = new Map<string, Map<number, Row>>();
  const speed = (row: Row | undefined) => row?.recommended?.tokens_per_s.value ?? 0;
  for (const row of rows) {
    if (row.efficiency_against === null) continue;
    const kind = kinds.get(row.efficiency_against) ?? new Map<number, Row>();
    if (speed(row) > speed(kind.get(row.devices))) kind.set(row.devices, row);
    kinds.set(row.efficiency_against, kind);
  }
  return [...kinds.values()].filter((kind) => kind.size > 1).map((kind) => [...kind.values()].sort((a, b) => a.devices - b.devices));
}
