/** The plan for use: what runs it, where, and then the launch with its files. */
import { useEffect, useRef, useState } from "preact/hooks";
import { get, withQuery } from "../../api/client";
import { useResource } from "../../api/resource";
import type { CampaignView, ExportOption, ExportView, FormatEntry, RegistryView } from "../../api/types";
import { Field, Prose } from "../../ui/basics";
import { CopyButton } from "../../ui/copy";
import { Dialog } from "../../ui/dialog";
import { Download } from "../../ui/download";
import { ErrorState, LoadingState } from "../../ui/states";

/** The program of the campaign itself: the user's launch, or else the job that measured the plan. */
const JOB = "job";
/** Options that are lists of texts; one text may be typed as it is. */
const LISTS = ["arguments", "setup"];
/** From the last key to the next reading of the files. */
const REST_MS = 300;

/** The program, the place, and what was typed: by what an option is of (a program or a place) and its name. */
type Typed = Readonly<Record<string, string>>;
/** By the path of the campaign, for when the dialog opens again. */
const TYPED = new Map<string, Typed>();

interface UseProps {
  /** Below v1/: of a campaign, which exports its winner, or of a trial. */
  path: string;
  /** Then no scheduler could run the trial's own job. */
  simulated: boolean;
  onClose: () => void;
}

export function UseDialog({ path, simulated, onClose }: UseProps) {
  const registry = useResource<RegistryView>("registry");
  const campaign = useResource<CampaignView>(path.split("/").slice(0, 2).join("/"));
  const problem = registry.problem ?? campaign.problem;
  const formats = registry.data?.export_formats;
  return (
    <Dialog title="Use this setting" onClose={onClose} wide testid="exports">
      {formats && campaign.data ? (
        <Exports path={path} simulated={simulated} formats={formats} spec={campaign.data.spec} />
      ) : problem ? (
        <ErrorState problem={problem} onRetry={registry.problem ? registry.refresh : campaign.refresh} />
      ) : (
        <LoadingState lines={6} />
      )}
    </Dialog>
  );
}

type ExportsProps = Omit<UseProps, "onClose"> & { formats: readonly FormatEntry[]; spec: CampaignView["spec"] };

function Exports({ path, simulated, formats, spec: { workload, runner } }: ExportsProps) {
  const named = (name: string) => formats.find((one) => one.name === name);
  const programs = formats.filter((one) => one.program !== "");
  const usual = programs.find(({ name }) => [workload.kind, workload.framework].includes(name)) ?? programs[0]!;
  const places = formats.filter((one) => !one.simulated);
  const campaign = path.split("/", 2).join("/");
  const [typed, hold] = useState<Typed>(TYPED.get(campaign) ?? {});
  const give = (name: string, value: string) => {
    TYPED.set(campaign, { ...typed, [name]: value });
    hold(TYPED.get(campaign)!);
  };
  const program = typed.program ?? (workload.kind === "command" ? JOB : usual.name);
  const chosen = typed.place ?? places.find(({ name }) => name === (runner.kind === "kubernetes" ? "jobset" : runner.kind))?.name ?? "";
  const unsent = program === "json" || (simulated && program === JOB);
  const place = unsent ? "" : chosen;
  const own = program === JOB ? [] : named(program)!.options;
  const options = [...own, ...(named(place)?.options.filter(({ name }) => !own.some((one) => one.name === name)) ?? [])];
  const keyOf = (one: ExportOption) => `${own.includes(one) ? program : place} ${one.name}`;
  const given = Object.fromEntries(options.map((one) => [one.name, typed[keyOf(one)] ?? ""]));
  const known = { ...(place === runner.kind && runner), ...(program === workload.kind && { ...workload, steps: undefined }) };
  const job = workload.kind === "command" ? "your launch" : `the trial's own job (profiling${workload.steps ? `, ${workload.steps} steps` : ""})`;
  return (
    <>
      <div class="halves">
        <Field label="What runs it?">
          <select value={program} onChange={(event) => give("program", event.currentTarget.value)}>
            {[...programs, ...formats.filter((one) => one.simulated && one.program === "")].map((one) => (
              <option key={one.name} value={one.name}>{one.name === JOB ? job : `${one.program || one.name}: ${one.words}`}</option>
            ))}
          </select>
        </Field>
        <Field label="Where?" hint={unsent ? "There is nothing in it that a scheduler could start." : ""}>
          <select value={place} disabled={unsent} onChange={(event) => give("place", event.currentTarget.value)}>
            <option value="">by hand, on each node</option>
            {places.map(({ name, words }) => <option key={name} value={name}>{name}: {words}</option>)}
          </select>
        </Field>
      </div>
      <Exported key={`${program} ${place}`} path={path} format={place || program} program={place && program} options={options} known={known} given={given} onGive={(one, value) => give(keyOf(one), value)} />
    </>
  );
}

interface ExportedProps {
  path: string;
  format: string;
  program: string;
  options: readonly ExportOption[];
  /** What the campaign says of the options. */
  known: Readonly<Record<string, unknown>>;
  /** By option; empty: nothing was typed. */
  given: Typed;
  onGive: (option: ExportOption, value: string) => void;
}

function Exported({ path, format, program, options, known, given, onGive }: ExportedProps) {
  const set = Object.entries({ program, ...given }).map(([name, value]) => [name, value.trim()] as const).filter(([, value]) => value !== "");
  const option = set.map(([name, value]) => `${name}=${LISTS.includes(name) && !value.startsWith("[") ? JSON.stringify([value]) : value}`);
  const missing = options.filter(({ name, required }) => required && !given[name] && !known[name]);
  const now = missing.length > 0 ? null : withQuery(`${path}/exports/${format}`, { option });
  const [asking, ask] = useState(now);
  useEffect(() => {
    const timer = setTimeout(() => ask(now), REST_MS);
    return () => clearTimeout(timer);
  }, [now]);
  const { data: read, problem, refresh } = useResource<ExportView>(asking);
  // Stays while the next one is read, so that no button goes away under a click.
  const last = useRef<ExportView | undefined>(undefined);
  const data = (last.current = read ?? (problem ? undefined : last.current));
  /** As of what is typed now. */
  const fresh = async () => (asking === now && read) || get<ExportView>(now!);
  const length = /--train-(iters|samples)/.test(String(given.arguments || known.arguments));
  const asked = options.filter(({ name, asked, required }) => required || (asked && !known[name] && !(name === "steps" && length)));
  const others = options.filter((one) => !asked.includes(one));
  const field = (one: ExportOption) => {
    const { name, meaning, required, default: usual, choices } = one;
    const said = known[name];
    const open = asked.includes(one) && !given[name] && !said;
    const onInput = ({ currentTarget: { value } }: { currentTarget: { value: string } }) => onGive(one, value);
    return (
      <div key={name} class={open ? "to-set" : undefined}>
        <Field label={open ? `${name}: to be set` : name} hint={meaning} mistake={problem?.mistakes.find(({ pointer }) => pointer.split("/").includes(name))?.detail}>
          {choices.length > 0 ? (
            <select value={given[name] || String(said ?? usual)} onInput={onInput}>
              {choices.map((one) => <option key={one} value={one}>{one}</option>)}
            </select>
          ) : (
            <input value={given[name]} placeholder={typeof said === "object" ? JSON.stringify(said) : String(said ?? usual)} required={required} autocomplete="off" spellcheck={false} onInput={onInput} />
          )}
        </Field>
      </div>
    );
  };
  return (
    <>
      {asked.length > 0 && <div class="three" data-testid="needed">{asked.map(field)}</div>}
      {others.length > 0 && (
        <details data-testid="options">
          <summary>More options</summary>
          <div class="three">{others.map(field)}</div>
        </details>
      )}
      {missing.length > 0 ? (
        <p class="muted" data-testid="missing">This needs {missing.map(({ name }) => name).join(" and ")}.</p>
      ) : problem?.status === 409 ? (
        <p class="error-state" role="alert" data-testid="no-words"><Prose text={problem.detail} /></p>
      ) : problem ? (
        <ErrorState problem={problem} onRetry={refresh} />
      ) : !data ? (
        <LoadingState lines={6} />
      ) : (
        <>
          {data.handover && data.handover.untold.length > 0 && (
            <p class="error-state" role="alert" data-testid="untold">
              <strong>This launch is not the whole setting.</strong> Not in it, to be added by hand: {data.handover.untold.join(", ")}.
            </p>
          )}
          {data.note && <p data-testid="export-note"><strong>{data.note}</strong></p>}
          {data.command !== null && <Text name="Launch command" text={data.command} copied={async () => (await fresh()).command ?? ""} testid="launch-command" />}
          <p class="muted" data-testid="measured-with">
            {data.simulated ? "Simulated by" : "Measured with"} {data.measured_with.words}{data.measured_with.dtype && `, number format ${data.measured_with.dtype}`}.
          </p>
          {data.handover && (
            <div class="error-state" role="note" data-testid="handover">
              <p><strong>Not measured with {data.handover.program}</strong></p>
              <p>The plan was {data.handover.warning}. {data.handover.offer}:</p>
              <Text name="Confirm there" text={data.handover.confirm} />
            </div>
          )}
          <div>
            <Download path={withQuery(`${path}/archive`, { format, option })} name={`${path.split("/")[1]}-trial-${data.trial}-${format}.tar.gz`}>
              Save all as one archive
            </Download>
          </div>
          {Object.entries(data.files).map(([name, text]) => (
            <Text key={name} name={name} text={text} copied={async () => (await fresh()).files[name] ?? ""} testid="export-file" />
          ))}
        </>
      )}
    </>
  );
}

/** A text with its name, to be copied. copied: what is, where that may be another one by then. */
export function Text({ name, text, copied, testid }: { name: string; text: string; copied?: () => Promise<string>; testid?: string }) {
  return (
    <section class="text" data-testid={testid}>
      <header class="card-head">
        {name && <h3>{name}</h3>}
        <div class="card-aside">
          <CopyButton text={copied ?? text} />
        </div>
      </header>
      <pre class="code-block" tabIndex={0}>{text}</pre>
    </section>
  );
}
