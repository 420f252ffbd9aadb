import { expect, test } from "vitest";
import { lines } from "./scaling_chart";

const point = (nodes: number, line: string, value: number) => ({ nodes, line, value, name: `${line}-${nodes}`, low: value, high: value });

test("only campaigns of one model are joined, by the best on each number of nodes", () => {
  const found = lines([point(4, "a", 7), point(1, "a", 2), point(1, "b", 9), point(4, "a", 8)]);
  expect(found.map((line) => line.map(({ nodes, value }) => [nodes, value]))).toEqual([[[1, 2], [4, 8]], [[1, 9]]]);
});
