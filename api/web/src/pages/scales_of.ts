/** Which of some campaigns scale one training. */
import type { ComparedCampaign } from "../api/types";

/** Those that the service measures against one and the same, on different numbers of devices: on each the fastest, in order. */
export function scalesOf<Row extends Pick<ComparedCampaign, "devices" | "efficiency_against" | "recommended">>(rows: readonly Row[]): Row[][] {
  const speed = ({ recommended }: Row) => recommended?.tokens_per_s.value ?? 0;
  const upwards = rows.filter((row) => row.efficiency_against !== null).sort((a, b) => a.devices - b.devices || speed(b) - speed(a));
  const kinds = new Set(upwards.map((row) => row.efficiency_against));
  return [...kinds]
    .map((kind) => upwards.filter((row) => row.efficiency_against === kind))
    .map((alike) => alike.filter(({ devices }, at) => devices !== alike[at - 1]?.devices))
    .filter((line) => line.length > 1);
}
