/** The best of each size, where a knob sizes the jobs: how speed grows with the devices, and what it costs. */
import type { Analysis } from "../../api/types";
import { count, number, share, short } from "../../format";
import { href } from "../../router";
import { Card } from "../../ui/basics";
import { TableFrame } from "../../ui/table";

export function SizesCard({ campaign, analysis }: { campaign: string; analysis: Analysis | undefined }) {
  const points = analysis?.scaling ?? [];
  if (points.length === 0) return null;
  const { speed_unit, cost_unit } = points[0]!;
  return (
    <Card title="Best of each size" testid="sizes">
      <TableFrame label="Best of each size" dense>
        <thead>
          <tr>
            {["nodes", "devices", speed_unit, "per device", "speed-up", "efficiency", cost_unit, "trial", "plan"].map((name) => (
              <th key={name} scope="col" class={name === "plan" ? undefined : "num"}>{name}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {points.map((one) => (
            <tr key={one.devices}>
              {[count(one.nodes), count(one.devices), short(one.tokens_per_s.value), number(one.tokens_per_s_per_device.value, 4), number(one.speedup.value), share(one.efficiency.value), number(one.cost)].map((words, at) => (
                <td key={at} class="num">{words}</td>
              ))}
              <td class="num"><a href={href({ page: "trial", id: campaign, number: one.trial })}>{one.trial}</a></td>
              <td class="mono small">{one.plan_key}</td>
            </tr>
          ))}
        </tbody>
      </TableFrame>
    </Card>
  );
}
