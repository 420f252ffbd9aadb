import { expect, test } from "vitest";
import { MessageReader } from "./stream";

const TEXT = 'retry: 1000\n\nid: 7\nevent: ready\ndata: {"id": 7}\n\n:\n\nid: 8\nevent: trial.done\ndata: {"a": "b: c"}\n\n';
const WHOLE = [
  { id: "7", event: "ready", data: '{"id": 7}' },
  { id: "8", event: "trial.done", data: '{"a": "b: c"}' },
];

test("the messages are the same wherever the stream is cut", () => {
  for (const size of [1, 2, 3, 7, 1000]) {
    const reader = new MessageReader();
    const pieces = Array.from({ length: Math.ceil(TEXT.length / size) }, (_, at) => TEXT.slice(at * size, (at + 1) * size));
    expect(pieces.flatMap((piece) => reader.push(piece))).toEqual(WHOLE);
  }
});

test("a message without its blank line has not come", () => {
  expect(new MessageReader().push("id: 9\ndata: half\n")).toEqual([]);
});
