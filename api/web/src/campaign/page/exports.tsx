/** The plan for use: the launch command and files in every format that the service can write. */
import { useState } from "preact/hooks";
import { withQuery } from "../../api/client";
import type { Mistake } from "../../api/problem";
import { useResource } from "../../api/resource";
import type { ExportOption, ExportView, FormatEntry, Handover, RegistryView } from "../../api/types";
import { Field } from "../../ui/basics";
import { CopyButton } from "../../ui/copy";
import { Dialog } from "../../ui/dialog";
import { Download } from "../../ui/download";
import { EmptyState, ErrorState, LoadingState } from "../../ui/states";

const KEY = "meshtune.export";
const FIRST = "job";

interface ExportsProps {
  /** Below v1/: of a campaign, which exports its winner, or of a trial. */
  path: string;
  /** Then there is no job that a scheduler could run. */
  simulated: boolean;
}

export function UseDialog({ onClose, ...exports }: ExportsProps & { onClose: () => void }) {
  return (
    <Dialog title="Use this setting" onClose={onClose} wide testid="exports">
      <Exports {...exports} />
    </Dialog>
  );
}

function Exports({ path, simulated }: ExportsProps) {
  const registry = useResource<RegistryView>("registry");
  const [name, setName] = useState(localStorage.getItem(KEY) ?? FIRST);
  const formats = (registry.data?.export_formats ?? []).filter((one) => one.simulated || !simulated);
  const format = formats.find((one) => one.name === name) ?? formats[0];
  const choose = (next: string) => {
    localStorage.setItem(KEY, next);
    setName(next);
  };
  if (registry.problem && !registry.data) return <ErrorState problem={registry.problem} onRetry={registry.refresh} />;
  if (format === undefined) return <LoadingState lines={6} />;
  return (
    <>
      <label class="row">
        Format
        <select value={format.name} onChange={(event) => choose(event.currentTarget.value)} data-testid="export-format">
          {formats.map((one) => (
            <option key={one.name} value={one.name}>
              {one.name}: {one.words}
            </option>
          ))}
        </select>
      </label>
      <Exported key={format.name} path={path} format={format} />
    </>
  );
}

function Exported({ path, format }: { path: string; format: FormatEntry }) {
  const [given, give] = useState<Readonly<Record<string, string>>>({});
  const option = Object.entries(given).filter(([, value]) => value !== "").map((one) => one.join("="));
  const missing = format.options.filter(({ name, required }) => required && !given[name]);
  const { data, problem, refresh } = useResource<ExportView>(missing.length > 0 ? null : withQuery(`${path}/exports/${format.name}`, { option }));
  const refused = problem?.kind === "cannot-express";
  return (
    <>
      <Options options={format.options} given={given} mistakes={problem?.mistakes ?? []} onGive={(name, value) => give({ ...given, [name]: value })} />
      {missing.length > 0 ? (
        <p class="muted" data-testid="missing">This format needs {missing.map(({ name }) => name).join(" and ")}.</p>
      ) : refused ? (
        <EmptyState title="This format cannot express the setting">
          <p>{problem.detail}</p>
        </EmptyState>
      ) : problem ? (
        <ErrorState problem={problem} onRetry={refresh} />
      ) : !data ? (
        <LoadingState lines={6} />
      ) : (
        <>
          <p class="muted" data-testid="measured-with">
            Measured with {data.measured_with.words}{data.measured_with.dtype && `, number format ${data.measured_with.dtype}`}.
          </p>
          {data.note && <p data-testid="export-note"><strong>{data.note}</strong></p>}
          {data.handover && <Warning handover={data.handover} />}
          {data.command !== null && <Text name="Launch command" text={data.command} testid="launch-command" />}
          <div>
            <Download path={withQuery(`${path}/archive`, { format: format.name, option })} name={`${path.split("/")[1]}-trial-${data.trial}-${format.name}.tar.gz`}>
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

interface OptionsProps {
  options: readonly ExportOption[];
  given: Readonly<Record<string, string>>;
  mistakes: readonly Mistake[];
  onGive: (name: string, value: string) => void;
}

/** What the format can be told, first what it has to be. */
function Options({ options, given, mistakes, onGive }: OptionsProps) {
  const fields = (those: readonly ExportOption[]) =>
    those.map(({ name, meaning, required, default: usual, choices }) => (
      <Field key={name} label={name} hint={meaning} mistake={mistakes.find(({ pointer }) => pointer.split("/").includes(name))?.detail}>
        {choices.length > 0 ? (
          <select value={given[name] ?? usual} onChange={(event) => onGive(name, event.currentTarget.value)}>
            {choices.map((one) => <option key={one} value={one}>{one}</option>)}
          </select>
        ) : (
          <input value={given[name] ?? ""} placeholder={usual} required={required} autocomplete="off" spellcheck={false} onChange={(event) => onGive(name, event.currentTarget.value.trim())} />
        )}
      </Field>
    ));
  const needed = options.filter((one) => one.required);
  const others = options.filter((one) => !one.required);
  return (
    <>
      {needed.length > 0 && <div class="three" data-testid="needed">{fields(needed)}</div>}
      {others.length > 0 && (
        <details data-testid="options">
          <summary>Options of this format</summary>
          <div class="three">{fields(others)}</div>
        </details>
      )}
    </>
  );
}

/** The format is for another program than the one that measured the plan. */
function Warning({ handover }: { handover: Handover }) {
  return (
    <div class="error-state" role="note" data-testid="handover">
      <p>
        <strong>Not measured with {handover.program}</strong>
      </p>
      <p>The plan was {handover.warning}.</p>
      <p>{handover.offer}:</p>
      <Text name="Confirm there" text={handover.confirm} testid="confirm-command" />
    </div>
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
