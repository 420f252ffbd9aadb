/** A setting as its difference from another: "pipeline 64 → 32", and what the name means as its title. */
import type { CampaignView, Change } from "../../api/types";
import { dimensionsOf, INACTIVE, labelOf } from "../data/values";

export function changeWords({ knob, before, after }: Change): string {
  return `${labelOf(knob)} ${before ?? INACTIVE} → ${after ?? INACTIVE}`;
}

export function Changes({ campaign, changes }: { campaign: CampaignView; changes: readonly Change[] }) {
  const dimensions = dimensionsOf(campaign);
  return (
    <>
      {changes.map((change, at) => (
        <span key={change.knob} title={dimensions.find(({ name, label }) => [name, label].includes(change.knob))?.title}>
          {changeWords(change)}
          {at < changes.length - 1 && ", "}
        </span>
      ))}
    </>
  );
}
