/** The answer: which setting to use, what it reaches and gains, and the way to a job of it; or why there is none. */
import { useState } from "preact/hooks";
import { useResource } from "../../api/resource";
import { useCan, useChanges } from "../../api/session";
import type { CampaignView, Change, TrialBrief, TrialView } from "../../api/types";
import { setFilters } from "../../filters";
import { bytes, gain, gainInterval, objective } from "../../format";
import { Button, Card, Chip, TrialLink } from "../../ui/basics";
import { changeWords, trialWord, wordOf } from "../../words";
import { figuresOf } from "../data/figures";
import { NOT_CONFIRMED } from "../data/goal";
import { campaignPath } from "../data/paths";
import { type Setting, settingOf } from "../data/settings";
import { dimensionsOf } from "../data/values";
import { Revalidate } from "./more";
import { UseButton } from "./use_button";

type Found = NonNullable<CampaignView["summary"]["recommended"]>;

export function Answer({ campaign, rows }: { campaign: CampaignView; rows: readonly Setting[] }) {
  const { recommended: best, recommended_is_baseline: kept, recommended_reason: reason, fastest_once, baseline } = campaign.summary;
  const mayMeasure = useChanges(campaign) && useCan("launch");
  const [asks, ask] = useState(false);
  const path = campaignPath(campaign.id);
  if (!best) {
    return (
      <Card title={fastest_once ? "No recommendation" : "Nothing is measured yet"} testid="answer">
        <p data-testid="recommendation">{fastest_once || campaign.summary.failed > 0 ? `${reason}.` : "The answer comes with the first measurement."}</p>
      </Card>
    );
  }
  const speed = best.objective;
  const [head, ...rest] = objective(speed.value, speed.unit).split(" ");
  const gained = kept ? null : best.gain_over_baseline;
  // The first sentence is the gain, which the card shows; a change of the numerics is a badge.
  const sentences = reason.split(/; (?![^(]*\))/).slice(gained ? 1 : 0).filter((words) => words !== "keep the baseline" && !words.startsWith("changes the numerics"));
  const others = othersOf(campaign, best);
  const said = sentences.filter((words) => !others.some(({ found }) => words.includes(found.plan_key)));
  return (
    <Card
      class="answer"
      testid="answer"
      title="Recommended setting"
      aside={
        <>
          <span class="row" data-testid="badges">
            {campaign.simulated && <Chip title="No device ran these trials">simulated</Chip>}
            {kept && <Chip>baseline kept</Chip>}
            {(best.runs > 0 || !kept) && <Chip tone={best.runs > 0 ? "ok" : "pruned"}>{best.runs > 0 ? `confirmed ×${best.runs}` : NOT_CONFIRMED}</Chip>}
            {best.changed_numerics.length > 0 && <Chip tone="failed">changes numerics: {best.changed_numerics.join(", ")}</Chip>}
          </span>
          <UseButton path={path} simulated={campaign.simulated} />
        </>
      }
    >
      <p class="answer-words" data-testid="answer-setting">{kept ? "the baseline, unchanged" : best.changes.length > 0 ? <Changes campaign={campaign} changes={best.changes} /> : best.plan_key}</p>
      <p class="small muted">
        <TrialLink campaign={campaign.id} number={best.trial} /> <code>{best.plan_key}</code>
      </p>
      <dl class="answer-figures">
        <Figure label="speed" value={head!} note={rest.join(" ")} testid="answer-speed" />
        {gained && <Figure label="gain over the baseline" value={gain(gained.value)} note={best.gain_rounds > 0 ? `(${gainInterval(gained)})` : NOT_CONFIRMED} testid="answer-gain" />}
        {best.headroom_bytes !== null && <Figure label="memory left" value={bytes(best.headroom_bytes)} note="on the fullest device" testid="answer-memory" />}
      </dl>
      {others.map(({ name, found }) => (
        <p key={name} class="small">
          <strong>{name}</strong> was <TrialLink campaign={campaign.id} number={found.trial} />
          {baseline && found.changes.length > 0 && <> ({<Changes campaign={campaign} changes={found.changes} />})</>}, {objective(found.objective.value, found.objective.unit)}:{" "}
          {whyNot(found, sentences, settingOf(rows, found.trial))}.
        </p>
      ))}
      {kept && others.length > 0 && mayMeasure && <Button onClick={() => ask(true)}>Measure it again beside the baseline</Button>}
      {asks && <Revalidate path={path} onDone={() => ask(false)} onClose={() => ask(false)} />}
      {said.length > 0 && <p class="small muted" data-testid="recommendation">{said.join("; ")}.</p>}
    </Card>
  );
}

function Figure({ label, value, note, testid }: { label: string; value: string; note: string; testid: string }) {
  return (
    <div data-testid={testid}>
      <dt class="small muted">{label}</dt>
      <dd><strong>{value}</strong> <span class="small muted">{note}</span></dd>
    </div>
  );
}

/** What was fastest where that is another setting; once where it is so by both words. */
function othersOf({ summary: { fastest_once, fastest_confirmed } }: CampaignView, best: Found): { name: string; found: Found }[] {
  const named = [["Fastest once", fastest_once], ["Fastest confirmed", fastest_confirmed]] as const;
  const others = named.flatMap(([name, found]) => (found && found.plan_key !== best.plan_key ? { name, found } : []));
  return others[0]?.found.plan_key === others[1]?.found.plan_key ? others.slice(1) : others;
}

function whyNot({ plan_key }: Found, sentences: readonly string[], row: Setting | undefined): string {
  const own = sentences.find((words) => words.includes(plan_key));
  if (own) return own.slice(own.indexOf(plan_key) + plan_key.length).replace(/^, is |^ /, "");
  return row && figuresOf(row).runs > 0 ? "it was slower in its second runs" : "it has no second run";
}

/** In place of the answer where nothing was measured and the campaign is over: why, by the first trial that failed. */
export function Lost({ campaign: { id, reason, state, summary }, trials }: { campaign: CampaignView; trials: readonly TrialBrief[] }) {
  const first = trials.find(({ verdict }) => verdict !== null && verdict !== "ok");
  const { data } = useResource<TrialView>(first ? `${campaignPath(id)}/trials/${first.number}` : null);
  const log = data?.attempts.at(-1)?.log_tail.trimEnd();
  return (
    <section class="error-state" data-testid="answer">
      <h2>Nothing was measured</h2>
      <p>{reason.split("\n")[0] || summary.recommended_reason || `the campaign is ${state}`}.</p>
      {first && (
        <>
          <p>
            <TrialLink campaign={id} number={first.number} />, the first that failed:{" "}
            <strong>{first.failure ? wordOf(first.failure) : trialWord(first).word}</strong>
          </p>
          {log && <pre class="code-block" tabIndex={0} aria-label="End of its log" data-testid="lost-log">{log}</pre>}
          <Button onClick={() => setFilters({ tab: "failures" })}>What to do about it</Button>
        </>
      )}
    </section>
  );
}

/** A setting as its difference from another, with what each name means as its title. */
export function Changes({ campaign, changes }: { campaign: CampaignView; changes: readonly Change[] }) {
  const dimensions = dimensionsOf(campaign);
  const titleOf = (knob: string) => dimensions.find(({ name, label }) => [name, label].includes(knob))?.title;
  return <>{changes.map((change, at) => [at > 0 && " ", <span class="change" title={titleOf(change.knob)}>{changeWords(change)}{at < changes.length - 1 && ","}</span>])}</>;
}
