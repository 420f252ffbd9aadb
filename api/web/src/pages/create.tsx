/** A new campaign: a spec from a launch script, a form or a paste, its live quote beside it, and the launch. */
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { useAct } from "../api/act";
import { newKey, post, text as readText } from "../api/client";
import { useResource } from "../api/resource";
import { session, useCan } from "../api/session";
import type { CampaignView, ExamplesView } from "../api/types";
import { campaignPath } from "../campaign/data/paths";
import { useFilter } from "../filters";
import { amount } from "../format";
import { go, href } from "../router";
import { useStore } from "../use_store";
import { Button, Card, Chip } from "../ui/basics";
import { EmptyState, ErrorState, LoadingState } from "../ui/states";
import { Tabs } from "../ui/tabs";
import { Title } from "../ui/title";
import { CreateForm, FIRST_FORM, Select, type SpecForm } from "./create_form";
import { FIRST_SCRIPT, LaunchScript, type Script } from "./create_script";
import { Quote } from "./quote";
import { SpecEditor } from "./spec_editor";
import { isLaunch, specOf, typeOf } from "./spec_text";
import { misfit, useQuote, type Quoted } from "./use_quote";
import "./create.css";

const SOURCES = [["script", "From my launch script"], ["form", "Form"], ["yaml", "YAML"]] as const;

/** What is written is kept in this tab of the browser until it is launched. */
export function Create() {
  const [from] = useFilter("from");
  const key = `meshtune.draft.${from}`;
  const [draft] = useState(() => JSON.parse(sessionStorage.getItem(key) ?? "{}"));
  const [source, setSource] = useState<(typeof SOURCES)[number][0]>(draft.source ?? (from ? "yaml" : "script"));
  const [script, setScript] = useState<Script>(draft.script ?? FIRST_SCRIPT);
  const [form, setForm] = useState<SpecForm>(draft.form ?? FIRST_FORM);
  // Read from a script, pasted or changed by hand; the form has its own.
  const [own, setOwn] = useState<string>(draft.own ?? "");
  useEffect(() => {
    try {
      sessionStorage.setItem(key, JSON.stringify({ source, script, form, own }));
    } catch {} // too long to be kept
  }, [source, script, form, own]);
  const text = source === "form" ? specOf(form) : own;
  const last = useQuote(text);
  const quoted = { ...last, asking: last.asking || last.text !== text };
  const origin = useAct();
  useEffect(() => {
    if (from && !own) void origin.run(async () => setOwn((await readText(`${campaignPath(from)}/spec.yaml`)).text));
  }, [from]);

  const choose = (next: typeof source) => {
    if (next === "yaml" && !own) setOwn(text);
    if (next === "form" && own === specOf(form)) setOwn("");
    setSource(next);
  };
  const read = () => {
    setScript({ ...FIRST_SCRIPT, text: own });
    setOwn("");
    setSource("script");
  };
  const write = (typed: string) => {
    setOwn(typed);
    if (source === "form") setSource("yaml");
  };
  const mistakes = (last.text === text && last.problem?.mistakes) || [];

  return (
    <>
      <div class="page-head">
        <Title>New campaign</Title>
      </div>
      <div class="create">
        <Card testid="start">
          <Tabs label="Start from" tabs={SOURCES} value={source} onChange={choose}>
            {source === "script" && <LaunchScript script={script} onScript={setScript} spec={own} onSpec={setOwn} />}
            {source === "form" && own && <p role="status">The text of the tab YAML is kept until the spec below is edited; the form does not read it.</p>}
            {source === "form" && <CreateForm form={form} onForm={setForm} />}
            {source === "yaml" && (
              <div class="form">
                {origin.problem && <ErrorState problem={origin.problem} />}
                {origin.busy && <LoadingState />}
                <Examples text={own} onText={setOwn} />
                {isLaunch(own) && (
                  <p class="row" role="status">
                    This looks like a launch script.
                    <Button onClick={read}>Read it</Button>
                  </p>
                )}
              </div>
            )}
            {(source !== "script" || own) && <SpecEditor text={text} mistakes={mistakes} onText={write} />}
          </Tabs>
        </Card>
        <div class="create-side">
          <Launch text={text} quoted={quoted} onLaunch={() => sessionStorage.removeItem(key)} />
          <QuoteCard quoted={quoted} aside={text.trim() && <QuoteState quoted={quoted} />} />
        </div>
      </div>
    </>
  );
}

function Examples({ text, onText }: { text: string; onText: (text: string) => void }) {
  const examples = useResource<ExamplesView>("examples").data?.examples ?? [];
  const named = examples.map(({ yaml, name, title }) => [yaml, `${name}: ${title}`] as const);
  return <Select label="Example" value={text} options={[["", "my own text"], ...named]} onValue={onText} />;
}

function QuoteCard({ quoted: { quote, problem, asking }, aside }: { quoted: Quoted; aside: ComponentChildren }) {
  return (
    <Card title="Quote" aside={aside} testid="quote">
      {problem && (problem.mistakes.length ? <p class="muted">There is a quote once the spec has no mistakes.</p> : <ErrorState problem={problem} />)}
      {quote && (
        <div class={asking ? "stale" : undefined}>
          <Quote quote={quote} />
        </div>
      )}
      {!quote && !problem && (asking ? <LoadingState lines={8} /> : <EmptyState title="Nothing to quote yet" />)}
    </Card>
  );
}

function QuoteState({ quoted: { quote, problem, asking } }: { quoted: Quoted }) {
  if (asking) return <span class="muted small">asking</span>;
  const mistakes = problem?.mistakes.length ?? 0;
  if (mistakes) return <Chip tone="oom">{mistakes === 1 ? "1 mistake" : `${mistakes} mistakes`}</Chip>;
  if (problem) return <Chip tone="failed">no answer</Chip>;
  if (quote?.fit && Math.round(quote.fit.expected) === 0) return <Chip tone="oom">nothing is expected to fit</Chip>;
  if (misfit(quote)) return <Chip tone="oom">the baseline does not fit</Chip>;
  return <Chip tone="ok">can be launched</Chip>;
}

/** One Idempotency-Key for one text: clicking twice, or again after a lost answer, starts one campaign. */
function Launch({ text, quoted, onLaunch }: { text: string; quoted: Quoted; onLaunch: () => void }) {
  const may = useCan("launch");
  const key = useMemo(newKey, [text]);
  const { busy, problem, run, forget } = useAct();
  useEffect(forget, [text]);
  const launch = () =>
    run(async () => {
      const started = await post<CampaignView>("campaigns", { body: text, type: typeOf(text), idempotencyKey: key });
      onLaunch();
      go(href({ page: "campaign", id: started.id }));
    });
  const ready = quoted.problem === null && !quoted.asking && text.trim() !== "";
  return (
    <Card class="launch" testid="launch">
      <div class="pile">
        <Button kind="primary" disabled={!may || !ready} busy={busy} onClick={() => void launch()}>
          Launch
        </Button>
        {may ? <Quota /> : <p class="muted small">This token may look but not launch: it lacks the scope launch.</p>}
        {problem && <ErrorState problem={problem} />}
      </div>
    </Card>
  );
}

/** What the token has used of what it may. */
function Quota() {
  const whoami = useStore(session, (now) => (now.state === "signed-in" ? now.whoami : null));
  if (!whoami) return null;
  const { used, quotas } = whoami;
  const kinds = [["campaigns", "campaigns active"], ["trials", "trials today"], ["device_hours", "device-hours in 30 days"]] as const;
  const parts = kinds.flatMap(([kind, words]) => (quotas[kind] === null ? [] : [`${amount(used[kind])} of ${amount(quotas[kind])} ${words}`]));
  return <p class="muted small">{parts.length ? `Used: ${parts.join(", ")}.` : "It starts at once, and can be paused or cancelled."}</p>;
}
