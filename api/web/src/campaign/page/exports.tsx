/** The setting for use: the launch command and files in every format that the service can write. */
import { useState } from "preact/hooks";
import { useResource } from "../../api/resource";
import type { ExportView, Handover, RegistryView } from "../../api/types";
import { Button } from "../../ui/basics";
import { CopyButton, SelectedText } from "../../ui/copy";
import { Dialog } from "../../ui/dialog";
import { save } from "../../ui/json";
import { EmptyState, ErrorState, LoadingState } from "../../ui/states";

const KEY = "meshtune.export";
const FIRST = "job";

interface ExportsProps {
  /** Below v1/: of a campaign, which exports its winner, or of a trial. */
  path: string;
  title: string;
  disabled?: boolean;
  /** Of what can be used as it is. */
  primary?: boolean;
}

export function ExportButton({ path, title, disabled = false, primary = true }: ExportsProps) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <Button kind={primary ? "primary" : "plain"} disabled={disabled} onClick={() => setOpen(true)} data-testid="copy-launch">
        Copy launch command
      </Button>
      {open && (
        <Dialog title={title} onClose={() => setOpen(false)} wide testid="exports">
          <Exports path={path} />
        </Dialog>
      )}
    </>
  );
}

function Exports({ path }: { path: string }) {
  const registry = useResource<RegistryView>("registry");
  const [format, setFormat] = useState(localStorage.getItem(KEY) ?? FIRST);
  const formats = registry.data?.export_formats ?? [];
  const known = formats.some((one) => one.name === format) ? format : (formats[0]?.name ?? null);
  const choose = (name: string) => {
    localStorage.setItem(KEY, name);
    setFormat(name);
  };
  if (registry.problem && !registry.data) return <ErrorState problem={registry.problem} onRetry={registry.refresh} />;
  if (known === null) return <LoadingState lines={6} />;
  return (
    <>
      <label class="row">
        Format
        <select value={known} onChange={(event) => choose(event.currentTarget.value)} data-testid="export-format">
          {formats.map(({ name, words }) => (
            <option key={name} value={name}>
              {name}: {words}
            </option>
          ))}
        </select>
      </label>
      <Exported key={known} path={`${path}/exports/${known}`} />
    </>
  );
}

function Exported({ path }: { path: string }) {
  const { data, problem, refresh } = useResource<ExportView>(path);
  if (problem?.kind === "cannot-express") {
    return (
      <EmptyState title="This format cannot express the setting">
        <p>{problem.detail}</p>
      </EmptyState>
    );
  }
  if (problem && !data) return <ErrorState problem={problem} onRetry={refresh} />;
  if (!data) return <LoadingState lines={6} />;
  return (
    <>
      <p class="muted" data-testid="measured-with">Measured with {data.measured_with.words}</p>
      {data.handover && <Warning handover={data.handover} />}
      {data.command !== null && <Text name="Launch command" text={data.command} testid="launch-command" />}
      {Object.entries(data.files).map(([name, text]) => (
        <Text key={name} name={name} text={text} testid="export-file" saved />
      ))}
    </>
  );
}

/** The format is for another program than the one that measured the setting. */
function Warning({ handover }: { handover: Handover }) {
  return (
    <div class="error-state" role="note" data-testid="handover">
      <p>
        <strong>Not measured with {handover.program}</strong>
      </p>
      <p>The setting was {handover.warning}.</p>
      <p>{handover.offer}:</p>
      <Text name="Confirm there" text={handover.confirm} testid="confirm-command" />
    </div>
  );
}

/** A text with its name, to be copied or saved. */
export function Text({ name, text, testid, saved = false }: { name: string; text: string; testid?: string; saved?: boolean }) {
  return (
    <section class="text" data-testid={testid}>
      <header class="card-head">
        {name && <h3>{name}</h3>}
        <div class="card-aside">
          <CopyButton text={text} />
          {saved && <Button onClick={() => save(text, name.split("/").pop()!, "text/plain")}>Save</Button>}
        </div>
      </header>
      <SelectedText text={text} />
    </section>
  );
}
