/** The first losses and gradient norms beside the baseline's: another way to lay out a job must not change what is trained. */
import { useResource } from "../api/resource";
import type { BestView, CampaignView, TrialView } from "../api/types";
import { number, share } from "../format";
import { href } from "../router";
import { Card } from "../ui/basics";
import { TableFrame } from "../ui/table";
import { compareLosses, widest } from "./loss_differences";

export function Losses({ campaign, trial }: { campaign: CampaignView; trial: TrialView }) {
  const losses = (trial.measurement ?? trial.partial)!.first_losses;
  const norms = trial.measurement?.first_gradient_norms ?? [];
  const baseline = campaign.summary.baseline?.trial ?? null;
  const path = `campaigns/${encodeURIComponent(campaign.id)}`;
  const other = baseline === null || baseline === trial.number ? null : baseline;
  const read = useResource<TrialView>(other === null ? null : `${path}/trials/${other}`);
  const best = useResource<BestView>(other === null ? null : `${path}/best?top=10`);
  const judged = [...(best.data?.best ?? []), ...(best.data?.front ?? [])].find((one) => one.trial === trial.number)?.trains_as_baseline;
  const steps = compareLosses(losses, read.data?.measurement?.first_losses ?? []);
  const most = widest(steps);
  const base = read.data?.measurement;
  const sixth = (values: readonly (number | null | undefined)[]) => values.map((value) => (value === null ? "not finite" : number(value, 6)));
  const rows = [
    ["this trial", sixth(losses)],
    ["baseline", sixth(base?.first_losses ?? [])],
    ["difference", base ? steps.map(({ difference }) => (difference === null ? "–" : signedShare(difference))) : []],
    ["gradient norm", sixth(norms)],
  ] as const;
  return (
    <Card title="First losses" testid="losses">
      <p>
        {other === null && (baseline === null ? "There is no baseline to compare with." : "This is the baseline.")}
        {other !== null && most && <>The largest difference from <a href={href({ page: "trial", id: campaign.id, number: other })}>the baseline</a> is {signedShare(most.difference!)} at step {most.step}. </>}
        {judged === true && "It trains as the baseline does."}
        {typeof judged === "string" && <strong>{judged}</strong>}
      </p>
      <TableFrame label="First losses" dense>
        <thead>
          <tr>
            <th scope="col">step</th>
            {steps.map((one) => <th key={one.step} scope="col" class="num">{one.step}</th>)}
          </tr>
        </thead>
        <tbody>
          {rows.filter(([, values]) => values.length > 0).map(([name, values]) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              {steps.map(({ step }) => <td key={step} class="num">{values[step - 1] ?? "–"}</td>)}
            </tr>
          ))}
        </tbody>
      </TableFrame>
    </Card>
  );
}

function signedShare(difference: number): string {
  const text = share(difference, 2);
  return difference > 0 && !text.startsWith("<") ? `+${text}` : text;
}
