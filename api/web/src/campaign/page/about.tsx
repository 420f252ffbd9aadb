/** What the campaign was asked for and what people say of it: spec, notes, tags, and all of it as files. */
import { useEffect, useState } from "preact/hooks";
import { text } from "../../api/client";
import type { CampaignView } from "../../api/types";
import { counted, number } from "../../format";
import { href } from "../../router";
import { Card, Tags } from "../../ui/basics";
import { Download } from "../../ui/download";
import { JsonLink } from "../../ui/json";
import { campaignPath } from "../data/paths";
import { Text } from "./exports";
import { Markdown } from "./markdown";

export function AboutTab({ campaign: { id, notes, tags, lessons } }: { campaign: CampaignView }) {
  const path = campaignPath(id);
  const [spec, hold] = useState("");
  useEffect(() => void text(`${path}/spec.yaml`).then((answer) => hold(answer.text), () => hold("")), [path]);
  return (
    <>
      {(notes || tags.length > 0) && (
        <Card title="Notes" testid="notes" class="pile">
          <Markdown text={notes} />
          <Tags tags={tags} />
        </Card>
      )}
      {lessons.length > 0 && (
        <Card title="Learns from" testid="lessons">
          {lessons.map(({ campaign_id, trials, weight, calibration }) => (
            <p key={campaign_id}>
              <a href={href({ page: "campaign", id: campaign_id })}>{campaign_id}</a> ({calibration && "calibration of "}{counted(trials, "trial")}, each worth {number(weight, 2)} of its own)
            </p>
          ))}
        </Card>
      )}
      <Card testid="downloads">
        <p class="row">
          Save:
          <Download kind="link" path={`${path}/report`} name={`${id}.html`}>report</Download>
          <Download kind="link" path={`${path}/data?format=csv`} name={`${id}.csv`}>CSV</Download>
          <Download kind="link" path={`${path}/spec.yaml`} name={`${id}.yaml`}>spec</Download>
          <span class="push">JSON:</span>
          <JsonLink path={path} label="campaign" />
          <JsonLink path={`${path}/trials?view=brief&page_size=1000`} label="trials" />
          <JsonLink path={`${path}/best?top=10`} label="best" />
          <JsonLink path={`${path}/analysis`} label="analysis" />
        </p>
        {spec && <Text name="Spec as written" text={spec} testid="spec" />}
      </Card>
    </>
  );
}
