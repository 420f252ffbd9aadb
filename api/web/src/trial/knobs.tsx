/** The knobs of a trial's plan, and what the job said that it saw of them. */
import type { CampaignView, Knob, TrialView } from "../api/types";
import { UNKNOWN } from "../format";
import { Card } from "../ui/basics";
import { DataTable } from "../ui/data_table";

export function Knobs({ campaign: { spec }, trial }: { campaign: CampaignView; trial: TrialView }) {
  const { knobs = [] } = spec;
  if (knobs.length === 0) return null;
  const rows = knobs.map((knob) => {
    const { name, meaning, when, numerics, default: usual } = knob;
    const value = trial.plan.knobs?.[name];
    const title = <span title={meaning}>{name}</span>;
    if (value === undefined) return [title, <span class="muted" title={when}>inactive</span>, "", toldBy(knob)];
    const changes = numerics === "changes" && value !== usual;
    return [title, `${value}${changes ? ", changes the numerics" : ""}`, String(trial.measurement?.knobs[name] ?? UNKNOWN), toldBy(knob)];
  });
  return (
    <Card title="Knobs" testid="knobs">
      <DataTable label="Knobs" heads={["knob", "value", "as the job saw it", "told by"]} rows={rows} />
    </Card>
  );
}

function toldBy({ name, argument, env, config, option }: Knob): string {
  return argument ?? env ?? config ?? option ?? (name === "nodes" || name === "devices" ? "the job's size" : `{${name}}`);
}
