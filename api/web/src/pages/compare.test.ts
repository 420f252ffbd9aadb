import { expect, test } from "vitest";
import { scalesOf } from "./scales_of";
import { specDifferences } from "./spec_differences";

const row = (devices: number, against: string | null, speed: number) => ({
  devices,
  efficiency_against: against,
  recommended: { tokens_per_s: { value: speed, low: speed, high: speed } } as never,
});

test("only campaigns of one model on different numbers of devices scale, by the fastest on each number", () => {
  const found = scalesOf([row(32, "a", 7), row(8, "a", 2), row(8, "b", 9), row(8, "b", 8), row(32, "a", 8), row(64, null, 1)]);
  expect(found.map((line) => line.map(({ devices, recommended }) => [devices, (recommended as { tokens_per_s: { value: number } }).tokens_per_s.value]))).toEqual([[[8, 2], [32, 8]]]);
});

test("specs differ in the keys that one lacks or has otherwise, and not in their names", () => {
  const one = { name: "one", cluster: { nodes: 2, name: "dgx" }, knobs: [{ name: "k", values: [1, 2] }], budget: { trials: 4, wall_time_s: null } };
  const two = { name: "two", cluster: { nodes: 4, name: "dgx" }, knobs: [{ name: "k", values: [1, 3] }], budget: { trials: 4 }, seed: 1 };
  expect(specDifferences([one, two])).toEqual([
    { path: "cluster.nodes", values: ["2", "4"] },
    { path: "knobs.k.values", values: ["1, 2", "1, 3"] },
    { path: "seed", values: ["–", "1"] },
  ]);
});

test("what is empty is what is left out, and a fraction has six digits", () => {
  expect(specDifferences([{ accept: [], project: "", trial: { s: 205.11627906976744 }, seed: 123456789 }, { trial: { s: 1 }, seed: 123456788 }])).toEqual([
    { path: "trial.s", values: ["205.116", "1"] },
    { path: "seed", values: ["123456789", "123456788"] },
  ]);
});

test("another device is told by its name alone", () => {
  const spec = (name: string, nodes: number, flops: number) => ({ cluster: { nodes, device: { name, peak_flops: { bf16: flops } } } });
  const paths = (other: object) => specDifferences([spec("a", 1, 1), other]).map(({ path }) => path);
  expect(paths(spec("b", 2, 2))).toEqual(["cluster.nodes", "cluster.device.name"]);
  expect(paths(spec("a", 1, 2))).toEqual(["cluster.device.peak_flops.bf16"]);
});
