/** The document behind what is shown, one click away. */
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
  const { data, problem, refresh } = useResource<unknown>(open ? path : null);
  const text = data === undefined ? "" : JSON.stringify(data, null, 2);
  const title = `GET /v1/${path}`;
  return (
    <>
      <Button kind="link" onClick={() => setOpen(true)} title={title}>{label}</Button>
      {open && (
        <Dialog title={title} onClose={() => setOpen(false)} wide testid="json">
          <p class="row">
            <CopyButton kind="quiet" label="Copy as curl" text={`curl -H "Authorization: Bearer $MESHTUNE_TOKEN" '${address(path)}'`} />
            {text && <CopyButton text={text} />}
            {text && <Button onClick={() => save(text, `${path.replace(/[?&=/:]+/g, "-")}.json`)}>Save</Button>}
          </p>
          {problem ? <ErrorState problem={problem} onRetry={refresh} /> : text ? <pre class="code-block" tabIndex={0}>{text}</pre> : <LoadingState lines={12} />}
        </Dialog>
      )}
    </>
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
