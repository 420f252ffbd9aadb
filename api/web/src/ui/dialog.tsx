/** A panel over the page: the browser's own dialog, so focus stays inside and Esc closes it. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Act } from "../api/act";
import { Button } from "./basics";
import { ErrorState } from "./states";

interface DialogProps {
  title: string;
  onClose: () => void;
  wide?: boolean;
  testid?: string;
  children: ComponentChildren;
}

export function Dialog({ title, onClose, wide = false, testid, children }: DialogProps) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const opener = document.activeElement;
    element.current?.showModal();
    return () => {
      if (opener instanceof HTMLElement) opener.focus();
    };
  }, []);
  return (
    <dialog
      ref={element}
      class={wide ? "dialog wide" : "dialog"}
      aria-label={title}
      data-testid={testid}
      onClose={onClose}
      onClick={(event) => event.target === element.current && onClose()}
    >
      <div class="dialog-inside">
        <header class="card-head">
          <h2>{title}</h2>
          <Button kind="quiet" class="push" onClick={onClose} aria-label="Close">×</Button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

interface ConfirmProps {
  title: string;
  children: ComponentChildren;
  action: string;
  danger?: boolean;
  busy?: boolean;
  disabled?: boolean;
  testid?: string;
  onConfirm: () => void;
  onClose: () => void;
}

export function Confirm({ title, children, action, danger = false, busy = false, disabled = false, testid = "confirm", onConfirm, onClose }: ConfirmProps) {
  return (
    <Dialog title={title} onClose={onClose} testid={testid}>
      <form
        class="pile stretch"
        onSubmit={(event) => {
          event.preventDefault();
          onConfirm();
        }}
      >
        {children}
        <div class="dialog-actions">
          <Button onClick={onClose}>Back</Button>
          <Button type="submit" kind={danger ? "danger" : "primary"} busy={busy} disabled={disabled}>{action}</Button>
        </div>
      </form>
    </Dialog>
  );
}

/** Says why what was asked for was not done. */
export function Trouble({ act }: { act: Act }) {
  if (act.problem === null) return null;
  return (
    <Dialog title="That did not work" onClose={act.forget}>
      <ErrorState problem={act.problem} />
    </Dialog>
  );
}
