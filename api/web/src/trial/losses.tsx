/** The first losses and gradient norms beside the baseline's: another way to lay out a job must not change what is trained. */
import { useResource } from "../api/resource";
import type { BestView, CampaignView, TrialView } from "../api/types";
import { number, share, UNKNOWN } from "../format";
import { href } from "../router";
import { Card } from "../ui/basics";
import { DataTable } from "../ui/data_table";

type Numbers = readonly (number | null)[];

export function Losses({ campaign, trial }: { campaign: CampaignView; trial: TrialView }) {
  const losses = (trial.measurement ?? trial.partial)!.first_losses;
  const baseline = campaign.summary.baseline?.trial ?? null;
  const path = `campaigns/${encodeURIComponent(campaign.id)}`;
  const other = baseline === null || baseline === trial.number ? null : baseline;
  const read = useResource<TrialView>(other === null ? null : `${path}/trials/${other}`);
  const best = useResource<BestView>(other === null ? null : `${path}/best?top=10`);
  const judged = [...(best.data?.best ?? []), ...(best.data?.front ?? [])].find((one) => one.trial === trial.number)?.trains_as_baseline;
  const base = read.data?.measurement?.first_losses ?? [];
  const differences = differencesOf(losses, base);
  const most = widest(differences);
  const sixth = (values: Numbers) => values.map((value) => (value === null ? "not finite" : number(value, 6)));
  const rows = [
    ["this trial", sixth(losses)],
    ["baseline", sixth(base)],
    ["difference", base.length > 0 ? differences.map(signedShare) : []],
    ["gradient norm", sixth(trial.measurement?.first_gradient_norms ?? [])],
  ] as const;
  return (
    <Card title="First losses" testid="losses">
      <p>
        {other === null && (baseline === null ? "There is no baseline to compare with." : "This is the baseline.")}
        {other !== null && most !== null && <>The largest difference from <a href={href({ page: "trial", id: campaign.id, number: other })}>the baseline</a> is {signedShare(differences[most]!)} at step {most + 1}. </>}
        {judged === true && "It trains as the baseline does."}
        {typeof judged === "string" && <strong>{judged}</strong>}
      </p>
      <DataTable
        label="First losses"
        heads={["step", ...losses.map((_, at) => at + 1)]}
        rows={rows.filter(([, values]) => values.length > 0).map(([name, values]) => [name, ...losses.map((_, at) => values[at] ?? UNKNOWN)])}
        numeric
      />
    </Card>
  );
}

function signedShare(difference: number | null): string {
  if (difference === null) return UNKNOWN;
  const text = share(difference, 2);
  return difference > 0 && !text.startsWith("<") ? `+${text}` : text;
}

/** Each loss over the baseline's minus 1; null where one of them is missing or was not finite. */
export function differencesOf(losses: Numbers, baseline: Numbers): (number | null)[] {
  return losses.map((loss, at) => (loss !== null && baseline[at] ? loss / baseline[at] - 1 : null));
}

/** Where the difference is largest; null where nothing can be compared. */
export function widest(differences: Numbers): number | null {
  const sizes = differences.map((one) => (one === null ? -1 : Math.abs(one)));
  const most = Math.max(...sizes);
  return most < 0 ? null : sizes.indexOf(most);
}
