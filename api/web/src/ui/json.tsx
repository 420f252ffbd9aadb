/** The document behind what is shown, one click away. A plain link could not send the token, so the page fetches it. */
import { useState } from "preact/hooks";
import { address } from "../api/client";
import { useResource } from "../api/resource";
import { CopyButton } from "./copy";
import { Dialog } from "./dialog";
import { ErrorState, LoadingState } from "./states";
import { Button } from "./basics";

/** path: below v1/, as the client takes it. */
export function JsonLink({ path, label = "JSON" }: { path: string; label?: string }) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <button type="button" class="json-link" onClick={() => setOpen(true)} title={`GET /v1/${path}`}>
        {label}
      </button>
      {open && <JsonPanel path={path} onClose={() => setOpen(false)} />}
    </>
  );
}

function JsonPanel({ path, onClose }: { path: string; onClose: () => void }) {
  const { data, problem, refresh } = useResource<unknown>(path);
  const text = data === undefined ? "" : JSON.stringify(data, null, 2);
  const actions = text && (
    <>
      <CopyButton text={text} />
      <Button onClick={() => save(text, fileName(path))}>Save</Button>
    </>
  );
  return (
    <Dialog title={`GET /v1/${path}`} onClose={onClose} aside={actions} wide testid="json">
      <p class="small">
        <CopyButton kind="quiet" label="Copy as curl" text={`curl -H "Authorization: Bearer $MESHTUNE_TOKEN" '${address(path)}'`} />
      </p>
      {problem ? <ErrorState problem={problem} onRetry={refresh} /> : text ? <pre class="code-block" tabIndex={0}>{text}</pre> : <LoadingState lines={12} />}
    </Dialog>
  );
}

/** Offer a text, or a file that the service made, to be kept. */
export function save(content: BlobPart, name: string, type = "application/json"): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function fileName(path: string): string {
  return `${path.replace(/[?&=/:]+/g, "-")}.json`;
}
