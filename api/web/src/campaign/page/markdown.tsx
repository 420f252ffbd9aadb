/** Notes as Markdown, of which it knows paragraphs, headings, lists, code, emphasis and links to http(s). No HTML. */
import type { ComponentChildren } from "preact";

const INLINE = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*]+)\*|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)/g;

export function Markdown({ text }: { text: string }) {
  const blocks = text.replaceAll("\r", "").split(/(^```[^\n]*\n[\s\S]*?^```$)|\n\s*\n|(?=^#{1,6} )|(?<=^#{1,6} .*)\n/m);
  return <>{blocks.filter((block) => block?.trim()).map((block, at) => <Block key={at} text={block!.trim()} />)}</>;
}

function Block({ text }: { text: string }) {
  if (text.startsWith("```")) return <pre class="code-block" tabIndex={0}>{text.replace(/^```.*\n|\n?```$/g, "")}</pre>;
  const heading = /^#{1,6} (.*)$/.exec(text);
  if (heading) return <h3>{inline(heading[1]!)}</h3>;
  const at = text.search(/^\s*([-*]|\d+\.) /m);
  if (at < 0) return <p>{inline(text)}</p>;
  const items = text.slice(at).split(/^\s*(?:[-*]|\d+\.) /m).slice(1).map((item, place) => <li key={place}>{inline(item.trim())}</li>);
  return (
    <>
      {at > 0 && <p>{inline(text.slice(0, at))}</p>}
      {/^\s*\d/.test(text.slice(at)) ? <ol>{items}</ol> : <ul>{items}</ul>}
    </>
  );
}

function inline(text: string): ComponentChildren[] {
  const pieces: ComponentChildren[] = [];
  let last = 0;
  for (const found of text.matchAll(INLINE)) {
    const [whole, code, strong, soft, words, address] = found;
    pieces.push(text.slice(last, found.index));
    pieces.push(code ? <code>{code}</code> : strong ? <strong>{strong}</strong> : soft ? <em>{soft}</em> : <a href={address} rel="noreferrer">{words}</a>);
    last = found.index + whole.length;
  }
  return [...pieces, text.slice(last)];
}
