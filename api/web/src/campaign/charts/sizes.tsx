/** The best of each size, where a knob sizes the jobs: how speed grows with the devices, and what it costs. */
import type { Analysis } from "../../api/types";
import { count, number, share, short } from "../../format";
import { href } from "../../router";
import { Card } from "../../ui/basics";
import { DataTable } from "../../ui/data_table";

export function SizesCard({ campaign, analysis }: { campaign: string; analysis: Analysis | undefined }) {
  const [first, ...others] = analysis?.scaling ?? [];
  if (!first) return null;
  const rows = [first, ...others].map((one) => [
    count(one.nodes),
    count(one.devices),
    short(one.tokens_per_s.value),
    number(one.tokens_per_s_per_device.value, 4),
    number(one.speedup.value),
    share(one.efficiency.value),
    number(one.cost),
    <a href={href({ page: "trial", id: campaign, number: one.trial })}>{one.trial}</a>,
    <code class="small">{one.plan_key}</code>,
  ]);
  return (
    <Card title="Best of each size" testid="sizes">
      <DataTable label="Best of each size" heads={["nodes", "devices", first.speed_unit, "per device", "speed-up", "efficiency", first.cost_unit, "trial", "plan"]} rows={rows} numeric />
    </Card>
  );
}
