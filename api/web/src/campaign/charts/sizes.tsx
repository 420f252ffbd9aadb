/** The best of each size, where a knob sizes the jobs: how speed grows with the devices, and what it costs. */
import type { Analysis } from "../../api/types";
import { count, number, share, short } from "../../format";
import { href } from "../../router";
import { Card } from "../../ui/basics";

export function SizesCard({ campaign, analysis }: { campaign: string; analysis: Analysis | undefined }) {
  const points = analysis?.scaling ?? [];
  if (points.length === 0) return null;
  return (
    <Card title="Best of each size" testid="sizes">
      <div class="table-frame">
        <table class="dense">
          <thead>
            <tr>
              {["nodes", "devices", points[0]!.speed_unit, "per device", "speed-up", "efficiency", points[0]!.cost_unit, "trial"].map((name) => (
                <th key={name} scope="col" class="num">{name}</th>
              ))}
              <th scope="col">plan</th>
            </tr>
          </thead>
          <tbody>
            {points.map((one) => (
              <tr key={one.devices}>
                <td class="num">{count(one.nodes)}</td>
                <td class="num">{count(one.devices)}</td>
                <td class="num">{short(one.tokens_per_s.value)}</td>
                <td class="num">{number(one.tokens_per_s_per_device.value, 4)}</td>
                <td class="num">{number(one.speedup.value)}</td>
                <td class="num">{share(one.efficiency.value)}</td>
                <td class="num">{number(one.cost)}</td>
                <td class="num"><a href={href({ page: "trial", id: campaign, number: one.trial })}>{one.trial}</a></td>
                <td class="mono small">{one.plan_key}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}
