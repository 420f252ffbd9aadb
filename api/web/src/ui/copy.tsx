/** Copy text. On plain http the browser has no clipboard for us: then the text is shown, selected, to be copied by hand. */
import { useEffect, useState } from "preact/hooks";
import { Button, type ButtonProps } from "./basics";
import { Dialog } from "./dialog";

type CopyProps = Omit<ButtonProps, "onClick"> & {
  text: string | (() => string | Promise<string>);
  label?: string;
};

export function CopyButton({ text, label = "Copy", ...rest }: CopyProps) {
  const [said, say] = useState("");
  const [byHand, setByHand] = useState<string | null>(null);
  useEffect(() => {
    if (!said) return;
    const timer = setTimeout(() => say(""), 1500);
    return () => clearTimeout(timer);
  }, [said]);
  const copy = async () => {
    const whole = typeof text === "string" ? text : await text();
    try {
      await navigator.clipboard.writeText(whole);
      say("Copied");
    } catch {
      setByHand(whole);
    }
  };
  return (
    <>
      <Button {...rest} onClick={() => void copy()}>
        <span class="stacked">
          <span style={{ visibility: said ? "hidden" : "visible" }}>{label}</span>
          <span role="status">{said}</span>
        </span>
      </Button>
      {byHand !== null && (
        <Dialog title="Copy by hand" onClose={() => setByHand(null)} wide>
          <p class="muted">Over http there is no clipboard: the text is selected.</p>
          <pre ref={selectAll} class="code-block" tabIndex={0} onClick={(event) => selectAll(event.currentTarget)}>{byHand}</pre>
        </Dialog>
      )}
    </>
  );
}

/** On arrival, and at each click. */
function selectAll(text: HTMLElement | null): void {
  if (text) getSelection()?.selectAllChildren(text);
}
