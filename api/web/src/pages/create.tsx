/** A new campaign: a spec from a form, an example or a paste, its live quote beside it, and the launch. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useAct } from "../api/act";
import { newKey, post, text as readText } from "../api/client";
import type { Problem } from "../api/problem";
import { useResource } from "../api/resource";
import { session, useCan } from "../api/session";
import type { CampaignView, ExamplesView } from "../api/types";
import { useFilter } from "../filters";
import { amount, count } from "../format";
import { go, href } from "../router";
import { useStore } from "../use_store";
import { Button, Card, Chip, Switch } from "../ui/basics";
import { EmptyState, ErrorState, LoadingState } from "../ui/states";
import { Title } from "../ui/title";
import { CreateForm, FIRST_FORM } from "./create_form";
import { Quote } from "./quote";
import { SpecEditor } from "./spec_editor";
import { specOf, typeOf, type SpecForm } from "./spec_text";
import { useQuote, type Quoted } from "./use_quote";
import "./create.css";

type Source = "form" | "example" | "text";
const SOURCES = [
  ["form", "Form"],
  ["example", "Example"],
  ["text", "Own text"],
] as const;

export function Create() {
  const [from] = useFilter("from");
  const [source, setSource] = useState<Source>(from ? "text" : "form");
  const [form, setForm] = useState<SpecForm>(FIRST_FORM);
  const [text, setText] = useState(from ? "" : specOf(FIRST_FORM));
  const own = useRef("");
  const quoted = useQuote(text);
  const origin = useAct();
  useEffect(() => {
    if (from) void origin.run(async () => write((await readText(`campaigns/${encodeURIComponent(from)}/spec.yaml`)).text));
  }, [from]);

  const write = (typed: string) => {
    own.current = typed;
    setSource("text");
    setText(typed);
  };
  const fill = (next: SpecForm) => {
    setForm(next);
    setText(specOf(next));
  };
  const choose = (next: Source) => {
    setSource(next);
    if (next === "form") setText(specOf(form));
    if (next === "text" && own.current) setText(own.current);
  };
  const mistakes = quoted.text === text && quoted.problem ? quoted.problem.mistakes : [];

  return (
    <>
      <div class="page-head">
        <Title>New campaign</Title>
      </div>
      <div class="create">
        <Card title="Start from" aside={<Switch label="Start from" options={SOURCES} value={source} onChange={choose} testid="source" />} testid="start">
          {source === "form" && <CreateForm form={form} onForm={fill} />}
          {source === "example" && <Examples text={text} onText={setText} />}
          {source === "text" && <OwnText from={from} loading={origin.busy} problem={origin.problem} />}
        </Card>
        <Card title="Spec" aside={<span class="muted small">this text is sent</span>} testid="spec">
          <SpecEditor text={text} mistakes={mistakes} onText={write} />
        </Card>
        <div class="create-side">
          <Launch text={text} quoted={quoted} />
          <QuoteCard text={text} quoted={quoted} />
        </div>
      </div>
    </>
  );
}

function OwnText({ from, loading, problem }: { from: string; loading: boolean; problem: Problem | null }) {
  if (problem) return <ErrorState problem={problem} />;
  if (loading) return <LoadingState />;
  return (
    <div class="pile muted">
      <p>{from ? `The spec of ${from} as it was written, to be changed.` : "Paste a spec beside, in YAML or JSON, or change the one that is there."}</p>
      <p>
        Every key is in <code>docs/reference/spec.md</code>. The form would write it anew; an example replaces it. Your text is kept until you leave
        the page.
      </p>
    </div>
  );
}

function Examples({ text, onText }: { text: string; onText: (text: string) => void }) {
  const { data, problem, refresh } = useResource<ExamplesView>("examples");
  if (problem) return <ErrorState problem={problem} onRetry={refresh} />;
  if (!data) return <LoadingState lines={4} height={44} />;
  return (
    <ul class="examples">
      {data.examples.map((example) => (
        <li key={example.name}>
          <button type="button" aria-pressed={example.yaml === text} onClick={() => onText(example.yaml)}>
            <strong>{example.name}</strong>
            <span class="muted small">{example.title}</span>
          </button>
        </li>
      ))}
    </ul>
  );
}

function QuoteCard({ text, quoted }: { text: string; quoted: Quoted }) {
  const { quote, problem, asking } = quoted;
  const stale = asking || quoted.text !== text || problem !== null;
  return (
    <Card title="Quote" aside={<QuoteState quoted={quoted} text={text} />} testid="quote">
      {problem && problem.mistakes.length === 0 && <ErrorState problem={problem} />}
      {quote ? (
        <div class={stale ? "stale" : undefined}>
          <Quote quote={quote} />
        </div>
      ) : asking ? (
        <LoadingState lines={8} />
      ) : (
        !problem && <EmptyState title="Nothing to quote yet" />
      )}
      {!quote && problem && problem.mistakes.length > 0 && <p class="muted">There is a quote once the spec has no mistakes.</p>}
    </Card>
  );
}

function QuoteState({ text, quoted }: { text: string; quoted: Quoted }) {
  if (!text.trim()) return null;
  if (quoted.asking || quoted.text !== text) return <span class="muted small">asking</span>;
  const mistakes = quoted.problem?.mistakes.length ?? 0;
  if (mistakes) return <Chip tone="oom">{mistakes === 1 ? "1 mistake" : `${mistakes} mistakes`}</Chip>;
  if (quoted.problem) return <Chip tone="failed">no answer</Chip>;
  return <Chip tone="ok">can be launched</Chip>;
}

/** One Idempotency-Key for one text: clicking twice, or again after a lost answer, starts one campaign. */
function Launch({ text, quoted }: { text: string; quoted: Quoted }) {
  const may = useCan("launch");
  const key = useMemo(newKey, [text]);
  const { busy, problem, run, forget } = useAct();
  useEffect(forget, [text]);
  const launch = () =>
    run(async () => {
      const started = await post<CampaignView>("campaigns", { body: text, type: typeOf(text), idempotencyKey: key });
      go(href({ page: "campaign", id: started.id }));
    });
  const ready = quoted.text === text && quoted.problem === null && !quoted.asking && text.trim() !== "";
  return (
    <Card testid="launch">
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
  const parts = [
    quotas.campaigns !== null && `${count(used.campaigns)} of ${count(quotas.campaigns)} campaigns active`,
    quotas.trials !== null && `${count(used.trials)} of ${count(quotas.trials)} trials today`,
    quotas.device_hours !== null && `${amount(used.device_hours)} of ${amount(quotas.device_hours)} device-hours in 30 days`,
  ].filter((part) => part !== false);
  return <p class="muted small">{parts.length ? `Used: ${parts.join(", ")}.` : "It starts at once, and can be paused or cancelled."}</p>;
}
