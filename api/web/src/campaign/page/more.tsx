/** What else can be done with a campaign: its name, tags, notes and budget, a plan tried by hand, the best ones again. */
import { useState } from "preact/hooks";
import { useAct } from "../../api/act";
import { newKey, patch, post } from "../../api/client";
import { useCan, useChanges } from "../../api/session";
import type { CampaignView, Plan } from "../../api/types";
import { Button, Field } from "../../ui/basics";
import { Confirm, Dialog } from "../../ui/dialog";
import { Menu } from "../../ui/menu";
import { ErrorState } from "../../ui/states";
import { Enqueue } from "./enqueue";

interface MoreProps {
  campaign: CampaignView;
  path: string;
  /** A plan to begin with where one is tried by hand. */
  start: Plan | undefined;
  onChange: () => void;
}

type Asked = "edit" | "enqueue" | "revalidate";

export function More({ campaign, path, start, onChange }: MoreProps) {
  const may = useCan("launch");
  const changes = useChanges(campaign);
  const [asked, ask] = useState<Asked | null>(null);
  if (!may || !changes) return null;
  const close = () => ask(null);
  const done = () => {
    close();
    onChange();
  };
  const goes = campaign.state === "running" || campaign.state === "paused";
  return (
    <>
      <Menu label="More" testid="more">
        <Button kind="quiet" onClick={() => ask("edit")}>{campaign.extendable ? "Edit, or extend the budget" : "Edit name, tags, notes, budget"}</Button>
        {goes && <Button kind="quiet" onClick={() => ask("enqueue")}>Try a plan by hand</Button>}
        {campaign.summary.done > 0 && <Button kind="quiet" onClick={() => ask("revalidate")}>Measure the best again</Button>}
      </Menu>
      {asked === "edit" && <Edit campaign={campaign} path={path} onDone={done} onClose={close} />}
      {asked === "enqueue" && <Enqueue campaign={campaign} path={path} start={start} onDone={done} onClose={close} />}
      {asked === "revalidate" && <Revalidate path={path} onDone={done} onClose={close} />}
    </>
  );
}

interface AskedProps {
  campaign: CampaignView;
  path: string;
  onDone: () => void;
  onClose: () => void;
}

function Revalidate({ path, onDone, onClose }: Omit<AskedProps, "campaign">) {
  const act = useAct();
  const [key] = useState(newKey);
  const start = () =>
    act.run(async () => {
      await post(`${path}:revalidate`, { body: {}, idempotencyKey: key });
      onDone();
    });
  return (
    <Confirm title="Measure the best again?" action="Measure again" busy={act.busy} onConfirm={() => void start()} onClose={onClose}>
      <p>Fresh jobs run the recommended plan and the baseline once more: whether the gain still holds on the machine as it is now.</p>
      {act.problem && <ErrorState problem={act.problem} />}
    </Confirm>
  );
}

const LIMITS = [
  ["trials", "Trials", 1],
  ["device_hours", "Device-hours", 1],
  ["wall_time_s", "Hours", 3600],
] as const;

function Edit({ campaign, path, onDone, onClose }: AskedProps) {
  const act = useAct();
  const { budget } = campaign.spec;
  const first: Record<string, string> = { name: campaign.name, tags: campaign.tags.join(", "), notes: campaign.notes };
  for (const [name, , unit] of LIMITS) first[name] = budget[name] === null ? "" : String(budget[name] / unit);
  const [typed, type] = useState(first);
  const edited = (name: string) => typed[name] !== first[name];
  const ends = !campaign.extendable && campaign.state !== "running" && campaign.state !== "paused";
  const save = () => {
    const limits = LIMITS.filter(([name]) => edited(name)).map(([name, , unit]) => [name, typed[name] === "" ? null : Number(typed[name]) * unit]);
    const body = {
      ...(edited("name") && { name: typed["name"] }),
      ...(edited("tags") && { tags: typed["tags"]!.split(/[,\s]+/).filter(Boolean) }),
      ...(edited("notes") && { notes: typed["notes"] }),
      ...(limits.length > 0 && { budget: Object.fromEntries(limits) }),
    };
    return act.run(async () => {
      await patch<CampaignView>(path, body);
      onDone();
    });
  };
  const field = (name: string, label: string, mistake?: string) => (
    <Field key={name} label={label} mistake={mistake}>
      <input value={typed[name]} autocomplete="off" onInput={(event) => type({ ...typed, [name]: event.currentTarget.value })} />
    </Field>
  );
  const wrong = (name: string) => (typed[name] !== "" && !(Number(typed[name]) > 0) ? "a number above 0" : undefined);
  const mistaken = LIMITS.some(([name]) => wrong(name));
  return (
    <Dialog title={`Edit ${campaign.id}`} onClose={onClose} testid="edit">
      <form
        class="pile stretch"
        onSubmit={(event) => {
          event.preventDefault();
          void save();
        }}
      >
        {field("name", "Name")}
        {field("tags", "Tags, with commas between them")}
        <Field label="Notes">
          <textarea rows={4} value={typed["notes"]} onInput={(event) => type({ ...typed, notes: event.currentTarget.value })} />
        </Field>
        {!ends && (
          <fieldset>
            <legend>{campaign.extendable ? "Budget: a larger one makes the campaign go on" : "Budget: the first limit that is spent ends it"}</legend>
            <div class="three">{LIMITS.map(([name, label]) => field(name, label, wrong(name)))}</div>
          </fieldset>
        )}
        {act.problem && <ErrorState problem={act.problem} />}
        <div class="dialog-actions">
          <Button onClick={onClose}>Back</Button>
          <Button type="submit" kind="primary" busy={act.busy} disabled={mistaken || !Object.keys(first).some(edited)}>Save</Button>
        </div>
      </form>
    </Dialog>
  );
}
