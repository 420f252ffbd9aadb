/** The text of a spec with its line numbers; lines with mistakes are marked, and the mistakes listed below. */
import { useRef } from "preact/hooks";
import type { Mistake } from "../api/problem";
import { Button, Prose } from "../ui/basics";
import { lineOf } from "./spec_text";

const FEWEST_ROWS = 10;
const MOST_ROWS = 30;

export function SpecEditor({ text, mistakes, onText }: { text: string; mistakes: readonly Mistake[]; onText: (text: string) => void }) {
  const area = useRef<HTMLTextAreaElement>(null);
  const gutter = useRef<HTMLDivElement>(null);
  const found = mistakes.map((mistake) => ({ ...mistake, line: lineOf(text, mistake) }));
  const lines = text.split("\n");
  const show = (line: number) => {
    const start = lines.slice(0, line).reduce((sum, before) => sum + before.length + 1, 0);
    area.current?.focus();
    area.current?.setSelectionRange(start, start + (lines[line]?.length ?? 0));
  };
  return (
    <>
      <div class="editor" data-testid="editor">
        <div class="gutter" ref={gutter} aria-hidden="true">
          {lines.map((_, at) => (
            <div key={at} class={found.some(({ line }) => line === at) ? "wrong" : undefined}>
              {at + 1}
            </div>
          ))}
        </div>
        <textarea
          ref={area}
          aria-label="Campaign spec, YAML or JSON"
          aria-invalid={found.length > 0}
          aria-describedby="mistakes"
          wrap="off"
          rows={Math.max(FEWEST_ROWS, Math.min(MOST_ROWS, lines.length))}
          spellcheck={false}
          autocapitalize="off"
          placeholder="Paste a spec: YAML, or JSON"
          value={text}
          onInput={(event) => onText(event.currentTarget.value)}
          onScroll={(event) => void (gutter.current!.scrollTop = event.currentTarget.scrollTop)}
        />
      </div>
      <ul class="mistakes" id="mistakes" data-testid="mistakes">
        {found.map(({ line, pointer, detail }) => (
          <li key={pointer + detail}>
            {line !== null && (
              <Button kind="link" onClick={() => show(line)}>
                line {line + 1}
              </Button>
            )}{" "}
            {pointer && !pointer.startsWith("/open_questions/") && <code>{`${pointer.slice(1).replaceAll("/", ".")}: `}</code>}
            <Prose text={detail} />
          </li>
        ))}
      </ul>
    </>
  );
}
