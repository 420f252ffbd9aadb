/** The knobs of a trial's plan, and what the job said that it saw of them. */
import type { CampaignView, Knob, TrialView } from "../api/types";
import { UNKNOWN } from "../format";
import { Card } from "../ui/basics";
import { TableFrame } from "../ui/table";

export function Knobs({ campaign, trial }: { campaign: CampaignView; trial: TrialView }) {
  const knobs = campaign.spec.knobs ?? [];
  if (knobs.length === 0) return null;
  const seen = trial.measurement?.knobs;
  return (
    <Card title="Knobs" testid="knobs">
      <TableFrame label="Knobs" dense>
        <thead>
          <tr>{["knob", "value", "as the job saw it", "told by"].map((head) => <th key={head} scope="col">{head}</th>)}</tr>
        </thead>
        <tbody>
          {knobs.map((knob) => {
            const value = trial.plan.knobs?.[knob.name];
            return (
              <tr key={knob.name} title={knob.meaning}>
                <th scope="row">{knob.name}</th>
                <td>{value === undefined ? <span class="muted" title={knob.when}>inactive</span> : String(value)}</td>
                <td>{value === undefined ? "" : String(seen?.[knob.name] ?? UNKNOWN)}</td>
                <td class="muted">{toldBy(knob)}</td>
              </tr>
            );
          })}
        </tbody>
      </TableFrame>
    </Card>
  );
}

function toldBy({ name, argument, env, config, option }: Knob): string {
  return argument ?? env ?? config ?? option ?? (name === "nodes" || name === "devices" ? "the job's size" : `{${name}}`);
}
