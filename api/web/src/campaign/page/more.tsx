/** What else can be done with a campaign: its name, tags, notes and budget, a plan by hand, the best again, one like it. */
import { useState } from "preact/hooks";
import { useAct } from "../../api/act";
import { get, newKey, patch, post } from "../../api/client";
import { asProblem } from "../../api/problem";
import { useCan, useChanges } from "../../api/session";
import type { CampaignView } from "../../api/types";
import { amount, count, duration } from "../../format";
import { href } from "../../router";
import { useStore } from "../../use_store";
import { Button, ButtonLink, Field } from "../../ui/basics";
import { Confirm } from "../../ui/dialog";
import { Menu } from "../../ui/menu";
import { ErrorState } from "../../ui/states";
import type { Feed } from "../data/feed";
import { campaignPath } from "../data/paths";
import { Enqueue } from "./enqueue";

export function More({ campaign, feed }: { campaign: CampaignView; feed: Feed }) {
  const may = useCan("launch");
  const changes = useChanges(campaign) && may;
  const paused = useStore(feed.stream.state) === "paused";
  const [asked, ask] = useState<"edit" | "enqueue" | "revalidate" | null>(null);
  const onClose = () => ask(null);
  const onDone = () => {
    onClose();
    feed.refresh();
  };
  const dialog = { campaign, path: campaignPath(campaign.id), onDone, onClose };
  const goes = campaign.state === "running" || campaign.state === "paused";
  return (
    <>
      <Menu label="More" testid="more">
        {changes && <Button kind="quiet" onClick={() => ask("edit")}>{campaign.extendable ? "Edit, or extend the budget" : "Edit name, tags, notes, budget"}</Button>}
        {changes && goes && <Button kind="quiet" onClick={() => ask("enqueue")}>Try a plan by hand</Button>}
        {changes && campaign.summary.done > 0 && <Button kind="quiet" onClick={() => ask("revalidate")}>Measure the best again</Button>}
        {may && <ButtonLink kind="quiet" href={href({ page: "new" }, { from: campaign.id })}>Clone</ButtonLink>}
        <Button kind="quiet" aria-pressed={paused} onClick={() => (paused ? feed.stream.resume() : feed.stream.pause())}>{paused ? "Go live" : "Pause live"}</Button>
      </Menu>
      {asked === "edit" && <Edit {...dialog} />}
      {asked === "enqueue" && <Enqueue {...dialog} trials={feed.snapshot.get().trials} />}
      {asked === "revalidate" && <Revalidate {...dialog} />}
    </>
  );
}

export interface AskedProps {
  campaign: CampaignView;
  path: string;
  onDone: () => void;
  onClose: () => void;
}

export function Revalidate({ path, onDone, onClose }: Omit<AskedProps, "campaign">) {
  const act = useAct();
  const [key] = useState(newKey);
  const start = () => post(`${path}:revalidate`, { body: {}, idempotencyKey: key }).then(onDone);
  return (
    <Confirm title="Measure the best again?" action="Measure again" busy={act.busy} onConfirm={() => void act.run(start)} onClose={onClose}>
      <p>Fresh jobs run the recommended setting and the baseline once more, side by side; where the baseline is kept, the best other one and the baseline.</p>
      {act.problem && <ErrorState problem={act.problem} />}
    </Confirm>
  );
}

const LIMITS = [
  ["trials", "Trials", 1, ({ summary }: CampaignView) => count(summary.done - summary.confirmations)],
  ["device_hours", "Device-hours", 1, ({ summary }: CampaignView) => amount(summary.device_hours)],
  ["wall_time_s", "Hours", 3600, ({ elapsed_s }: CampaignView) => duration(elapsed_s)],
] as const;

const NUMBER = "a number above 0";

function Edit({ campaign, path, onDone, onClose }: AskedProps) {
  const act = useAct();
  // As it was when the person began, and as somebody else has made it since.
  const [begun] = useState(campaign);
  const [theirs, setTheirs] = useState<CampaignView | null>(null);
  const first = written(begun);
  const now = written(theirs ?? begun);
  const [typed, type] = useState(first);
  const edited = (name: string) => typed[name] !== first[name];
  const ends = !campaign.extendable && campaign.state !== "running" && campaign.state !== "paused";
  const save = () => {
    const limits = LIMITS.filter(([name]) => edited(name)).map(([name, , unit]) => [name, typed[name] === "" ? null : Number(typed[name]) * unit]);
    const body = {
      ...(edited("name") && { name: typed["name"] }),
      ...(edited("tags") && { tags: typed["tags"]!.split(",").map((tag) => tag.trim().toLowerCase().replace(/\s+/g, "-")).filter(Boolean) }),
      ...(edited("notes") && { notes: typed["notes"] }),
      ...(limits.length > 0 && { budget: Object.fromEntries(limits) }),
    };
    return act.run(async () => {
      try {
        await patch<CampaignView>(path, body, (theirs ?? begun).version);
      } catch (error) {
        if (asProblem(error).status === 412) setTheirs(await get<CampaignView>(path));
        throw error;
      }
      onDone();
    });
  };
  const refused = (name: string) => act.problem?.mistakes.find(({ pointer }) => pointer.split("/").includes(name));
  const field = (name: string, label: string, mistake = refused(name)?.detail, hint = "") => (
    <Field key={name} label={label} mistake={mistake} hint={hint}>
      <input value={typed[name]} autocomplete="off" onInput={(event) => type({ ...typed, [name]: event.currentTarget.value })} />
    </Field>
  );
  const wrong = (name: string) => (typed[name] !== "" && !(Number(typed[name]) > 0) ? NUMBER : refused(name)?.detail);
  const mistaken = LIMITS.some(([name]) => wrong(name) === NUMBER);
  return (
    <Confirm title={`Edit ${campaign.id}`} action="Save" busy={act.busy} disabled={mistaken || !Object.keys(first).some(edited)} onConfirm={() => void save()} onClose={onClose} testid="edit">
      {field("name", "Name")}
      {field("tags", "Tags, with commas between them")}
      <Field label="Notes">
        <textarea rows={4} value={typed["notes"]} onInput={(event) => type({ ...typed, notes: event.currentTarget.value })} />
      </Field>
      {ends ? (
        <p class="muted">It is over for good: <a href={href({ page: "new" }, { from: campaign.id })}>start one like it</a> with another budget.</p>
      ) : (
        <fieldset>
          <legend>{campaign.extendable ? "Budget: a larger one makes the campaign go on" : "Budget: the first limit that is spent ends it"}</legend>
          <div class="three">{LIMITS.map(([name, label, , used]) => field(name, label, wrong(name), `${used(campaign)} used`))}</div>
        </fieldset>
      )}
      {act.problem?.status === 412 ? (
        <div role="alert" class="panel">
          <p>Somebody else has changed this campaign since you began. Nothing of yours is saved yet, and it still stands above. Save again to lay it over theirs:</p>
          <ul>{Object.keys(now).filter((name) => now[name] !== first[name]).map((name) => <li key={name}>{name.replace(/_s?/g, " ")}: {now[name] || "none"}</li>)}</ul>
        </div>
      ) : (
        act.problem && !Object.keys(first).some(refused) && <ErrorState problem={act.problem} />
      )}
    </Confirm>
  );
}

/** What can be edited, as it is typed. */
function written({ name, tags, notes, spec: { budget } }: CampaignView): Record<string, string> {
  const limits = LIMITS.map(([limit, , unit]) => [limit, budget[limit] === null ? "" : String(budget[limit] / unit)]);
  return { name, tags: tags.join(", "), notes, ...Object.fromEntries(limits) };
}
