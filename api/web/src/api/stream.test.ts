import { expect, test } from "vitest";
import { MessageReader } from "./stream";

const TEXT = 'retry: 1000\nid: 7\nevent: ready\ndata: {"id": 7}\n\n: still here\n\nid: 8\nevent: trial.done\ndata: {"a":\ndata: 1}\n\n';
const WHOLE = [
  { id: "7", event: "ready", data: '{"id": 7}' },
  { id: "8", event: "trial.done", data: '{"a":\n1}' },
];

test("the messages are the same wherever the stream is cut, and however its lines end", () => {
  for (const text of [TEXT, TEXT.replaceAll("\n", "\r\n"), TEXT.replaceAll("\n", "\r") + ":"])
    for (const size of [1, 2, 3, 7, 1000]) {
      const reader = new MessageReader();
      const pieces = Array.from({ length: Math.ceil(text.length / size) }, (_, at) => text.slice(at * size, (at + 1) * size));
      expect(pieces.flatMap((piece) => reader.push(piece))).toEqual(WHOLE);
      expect(reader.retryMs).toBe(1000);
    }
});

test("a message without its blank line has not come", () => {
  expect(new MessageReader().push("id: 9\ndata: half\n")).toEqual([]);
});
