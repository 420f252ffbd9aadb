import { expect, test } from "vitest";
import { answered, answerOf, isLaunch, lineOf, lineOfPointer, specOf, typeOf, withAnswer } from "./spec_text";
import type { SpecForm } from "./create_form";

const FORM: SpecForm = {
  workload: "torch",
  command: "",
  directory: "",
  script: "",
  name: "my-gpt",
  model: "llama3-8b",
  cluster: "dgx-h100",
  nodes: "4",
  globalBatch: "128",
  dtype: "bfloat16",
  objective: "mfu",
  search: "physics",
  runner: "slurm",
  trials: "30",
  deviceHours: "",
  wallHours: "1.5",
  parallel: "",
  catalogs: ["nccl", "cpu"],
  baseline: true,
  tp: "8",
  pp: "1",
  micro_batch_size: "1",
  zero_stage: "",
};

test("the form writes a spec, and leaves out what is empty", () => {
  expect(specOf(FORM)).toBe(
    [
      "name: my-gpt",
      "model: llama3-8b",
      "cluster: {preset: dgx-h100, nodes: 4}",
      "global_batch_size: 128",
      "workload: {kind: torch, dtype: bfloat16}",
      "catalogs: [nccl, cpu]",
      "baseline: {tp: 8, pp: 1, micro_batch_size: 1}",
      "objective: mfu",
      "search: physics",
      "runner: slurm",
      "budget: {trials: 30, wall_time_s: 5400}",
      "",
    ].join("\n"),
  );
});

test("a training code has what it needs, and no baseline is no key", () => {
  const text = specOf({ ...FORM, workload: "simulated", baseline: false, catalogs: [], nodes: "", trials: "", wallHours: "" });
  expect(text).toContain("workload: simulated\n");
  expect(text).toContain("cluster: dgx-h100\n");
  expect(text).not.toMatch(/baseline|budget|catalogs/);
  const command = specOf({ ...FORM, workload: "command", command: "python x.py --b {micro_batch_size} " });
  expect(command).toContain('workload: {kind: command, command: "python x.py --b {micro_batch_size}"}\n');
  expect(specOf({ ...FORM, workload: "deepspeed", directory: "run", script: "a.py" })).toContain("workload: {kind: deepspeed, directory: run, script: a.py}\n");
});

test("an answer stands at its path, and all questions are taken away at once", () => {
  const spec = "# a comment\nname: x\nopen_questions:\n- 'model.layers: how many?'\n- |-\n  two\n  lines\nmodel:\n  layers:\ncluster: dgx\n";
  expect(answerOf(spec, "model.layers")).toBe("");
  expect(answerOf(spec, "cluster.nodes")).toBeNull();
  const done = answered(withAnswer(spec, "model.layers", "32"));
  expect(done).toBe("# a comment\nname: x\nmodel:\n  layers: 32\ncluster: dgx\n");
  expect([answerOf(done, "model.layers"), answered(done)]).toEqual(["32", done]);
});

test("a launch is told from a spec", () => {
  expect(["#!/bin/bash\n", "torchrun --nproc-per-node 8 x.py", "#SBATCH -N 4\n", "cd x\nsrun python x.py"].map(isLaunch)).toEqual([true, true, true, true]);
  expect(["name: x\nworkload: {kind: command, command: torchrun x.py}", "", "# python is a word\nmodel: a"].map(isLaunch)).toEqual([false, false, false]);
});

test("words that YAML would read as something else are quoted", () => {
  const names = ["on", "a: b", "7b", "Null", "x-1", "42"].map((name) => specOf({ ...FORM, name }).split("\n")[0]);
  expect(names).toEqual(['name: "on"', 'name: "a: b"', 'name: "7b"', 'name: "Null"', "name: x-1", "name: 42"]);
});

test("JSON is sent as JSON, anything else as YAML", () => {
  expect([typeOf('{"a": 1e-7}'), typeOf("a: 1"), typeOf("{a: 1}")]).toEqual(["application/json", "application/yaml", "application/yaml"]);
});

const YAML = `# budget: in a comment
name: demo
space:
  tp: [1, 2]
  micro_batch_size:
    - 1
    - 0
workload:
  kind: torch
  measuring: {max_steps: 12,
    min_steps: 3}
budget: {trials: -1}
trial:
  time_limit_s: 90
`;

test("a pointer leads to the line of its key", () => {
  const lines = ["/name", "/space/tp", "/space/tp/1", "/space/micro_batch_size/1", "/workload/measuring/min_steps", "/budget/trials", "/trial/time_limit_s"];
  expect(lines.map((pointer) => lineOfPointer(YAML, pointer))).toEqual([1, 3, 3, 6, 10, 11, 13]);
});

test("a mistake in a knob leads to its line, of its own key where that has one", () => {
  const text = `baseline: {tp: 1, knobs: {fp8: off}}
catalogs: [nccl, none]
knobs:
  when: {values: [1, 2], env: WHEN}
  fp8: {values: [off, on], env: FP8, when: pp = 1}
  ac_budget:
    values: [0.5, 1.0]
    config: a.b
    when: recompute == selectve
`;
  const lines = ["/knobs/fp8/when", "/knobs/ac_budget/when", "/knobs/ac_budget/values/1", "/knobs/when/env", "/catalogs/1", "/knobs/none"];
  expect(lines.map((pointer) => lineOfPointer(text, pointer))).toEqual([4, 8, 6, 3, 1, 2]);
});

test("where the text lacks the key, its parent is meant, and the whole text has no line", () => {
  expect(["/budget/device_hours", "/space/pp", "/nothing", ""].map((pointer) => lineOfPointer(YAML, pointer))).toEqual([11, 2, null, null]);
});

test("a key of a child is not taken for one of the whole", () => {
  expect(lineOfPointer("model: {name: a, layers: 2}\ndevice:\n  name: b\nname: c\n", "/name")).toBe(3);
});

test("a key that only a comment names has no line", () => {
  expect(lineOfPointer("# seed: 3\nname: a\n", "/seed")).toBe(null);
});

test("JSON has lines too", () => {
  const json = JSON.stringify({ name: "a", budget: { trials: -1 }, space: { tp: [1, 2] } }, null, 2);
  expect(["/budget/trials", "/space/tp", "/name"].map((pointer) => lineOfPointer(json, pointer))).toEqual([3, 6, 1]);
});

test("a text that cannot be read at all names its line", () => {
  const mistakes = [{ pointer: "", detail: "is no YAML: expected ',' in line 3, column 5" }, { pointer: "/name", detail: "bad line 9" }];
  expect(mistakes.map((mistake) => lineOf(YAML, mistake))).toEqual([2, 1]);
});
