/** Notes as Markdown, of which it knows paragraphs, headings, lists, code, emphasis and links to http(s). No HTML. */
import type { ComponentChildren } from "preact";

const INLINE = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*]+)\*|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)/g;

export function Markdown({ text }: { text: string }) {
  const blocks = text.replaceAll("\r", "").split(/\n\s*\n|(?=^#{1,6} )|(?<=^#{1,6} .*)\n|(?<!^[-*] .*)\n(?=[-*] )/m);
  return <>{blocks.map((block, at) => <Block key={at} text={block.trim()} />)}</>;
}

function Block({ text }: { text: string }) {
  const heading = /^#{1,6} (.*)$/.exec(text);
  if (heading) return <h3>{inline(heading[1]!)}</h3>;
  if (!/^[-*] /.test(text)) return <p>{inline(text)}</p>;
  return <ul>{text.split(/^[-*] /m).slice(1).map((item, at) => <li key={at}>{inline(item.trim())}</li>)}</ul>;
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
