/** The plan for use: what runs it, where, and then the launch with its files. */
import { useState } from "preact/hooks";
import { withQuery } from "../../api/client";
import { useResource } from "../../api/resource";
import type { CampaignView, ExportOption, ExportView, FormatEntry, RegistryView } from "../../api/types";
import { Field } from "../../ui/basics";
import { CopyButton } from "../../ui/copy";
import { Dialog } from "../../ui/dialog";
import { Download } from "../../ui/download";
import { ErrorState, LoadingState } from "../../ui/states";

/** The program of the campaign itself: the user's launch, or else the job that measured the plan. */
const JOB = "job";
/** Options that are lists of texts; one text may be typed as it is. */
const LISTS = ["arguments", "setup"];

interface UseProps {
  /** Below v1/: of a campaign, which exports its winner, or of a trial. */
  path: string;
  /** Then there is no job that a scheduler could run. */
  simulated: boolean;
  onClose: () => void;
}

export function UseDialog({ path, simulated, onClose }: UseProps) {
  const registry = useResource<RegistryView>("registry");
  const campaign = useResource<CampaignView>(path.split("/").slice(0, 2).join("/"));
  const problem = registry.problem ?? campaign.problem;
  const formats = registry.data?.export_formats.filter((one) => one.simulated || !simulated);
  return (
    <Dialog title="Use this setting" onClose={onClose} wide testid="exports">
      {formats && campaign.data ? (
        <Exports path={path} formats={formats} spec={campaign.data.spec} />
      ) : problem ? (
        <ErrorState problem={problem} onRetry={registry.problem ? registry.refresh : campaign.refresh} />
      ) : (
        <LoadingState lines={6} />
      )}
    </Dialog>
  );
}

function Exports({ path, formats, spec: { workload, runner } }: { path: string; formats: readonly FormatEntry[]; spec: CampaignView["spec"] }) {
  const named = (name: string) => formats.find((one) => one.name === name);
  const programs = formats.filter((one) => one.program !== "");
  const usual = programs.find(({ name }) => [workload.kind, workload.framework].includes(name)) ?? programs[0]!;
  const [program, setProgram] = useState(workload.kind === "command" ? JOB : usual.name);
  const places = formats.filter((one) => !one.simulated);
  const [chosen, setPlace] = useState(named(runner.kind === "kubernetes" ? "jobset" : runner.kind)?.name ?? "");
  const place = program === "json" ? "" : chosen;
  const own = program === JOB ? [] : named(program)!.options;
  const options = [...own, ...(named(place)?.options.filter(({ name }) => !own.some((one) => one.name === name)) ?? [])];
  const known = { ...(place === runner.kind && runner), ...(program === workload.kind && { ...workload, steps: undefined }) };
  const job = workload.kind === "command" ? "your launch" : `the trial's own job (profiling${workload.steps ? `, ${workload.steps} steps` : ""})`;
  return (
    <>
      <div class="halves">
        <Field label="What runs it?">
          <select value={program} onChange={(event) => setProgram(event.currentTarget.value)}>
            {[...programs, ...formats.filter((one) => one.simulated && one.program === "")].map((one) => (
              <option key={one.name} value={one.name}>{one.name === JOB ? job : `${one.program || one.name}: ${one.words}`}</option>
            ))}
          </select>
        </Field>
        <Field label="Where?">
          <select value={place} disabled={places.length === 0 || place !== chosen} onChange={(event) => setPlace(event.currentTarget.value)}>
            <option value="">by hand, on each node</option>
            {places.map(({ name, words }) => <option key={name} value={name}>{name}: {words}</option>)}
          </select>
        </Field>
      </div>
      <Exported key={`${program} ${place}`} path={path} format={place || program} program={place && program} options={options} known={known} />
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
}

function Exported({ path, format, program, options, known }: ExportedProps) {
  const [given, give] = useState<Readonly<Record<string, string>>>({});
  const option = Object.entries({ program, ...given }).filter(([, value]) => value !== "").map(([name, value]) => `${name}=${LISTS.includes(name) && !value.startsWith("[") ? JSON.stringify([value]) : value}`);
  const missing = options.filter(({ name, required }) => required && !given[name] && !known[name]);
  const { data, problem, refresh } = useResource<ExportView>(missing.length > 0 ? null : withQuery(`${path}/exports/${format}`, { option }));
  const length = /--train-(iters|samples)/.test(String(given.arguments ?? known.arguments));
  const asked = options.filter(({ name, asked, required }) => required || (asked && !known[name] && !(name === "steps" && length)));
  const others = options.filter((one) => !asked.includes(one));
  const field = (one: ExportOption) => {
    const { name, meaning, required, default: usual, choices } = one;
    const said = known[name];
    const open = asked.includes(one) && !given[name] && !said;
    const onChange = ({ currentTarget: { value } }: { currentTarget: { value: string } }) => give((before) => ({ ...before, [name]: value.trim() }));
    return (
      <div key={name} class={open ? "to-set" : undefined}>
        <Field label={open ? `${name}: to be set` : name} hint={meaning} mistake={problem?.mistakes.find(({ pointer }) => pointer.split("/").includes(name))?.detail}>
          {choices.length > 0 ? (
            <select value={given[name] ?? String(said ?? usual)} onChange={onChange}>
              {choices.map((one) => <option key={one} value={one}>{one}</option>)}
            </select>
          ) : (
            <input placeholder={typeof said === "object" ? JSON.stringify(said) : String(said ?? usual)} required={required} autocomplete="off" spellcheck={false} onChange={onChange} />
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
      ) : problem ? (
        <ErrorState problem={problem} onRetry={refresh} />
      ) : !data ? (
        <LoadingState lines={6} />
      ) : (
        <>
          {data.note && <p data-testid="export-note"><strong>{data.note}</strong></p>}
          {data.command !== null && <Text name="Launch command" text={data.command} testid="launch-command" />}
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
            <Text key={name} name={name} text={text} testid="export-file" />
          ))}
        </>
      )}
    </>
  );
}

/** A text with its name, to be copied. */
export function Text({ name, text, testid }: { name: string; text: string; testid?: string }) {
  return (
    <section class="text" data-testid={testid}>
      <header class="card-head">
        {name && <h3>{name}</h3>}
        <div class="card-aside">
          <CopyButton text={text} />
        </div>
      </header>
      <pre class="code-block" tabIndex={0}>{text}</pre>
    </section>
  );
}
