/** The small form: presets and the keys that most campaigns set. It writes the spec, which says more than it asks. */
import { useResource } from "../api/resource";
import type { PresetsView, RegistryView } from "../api/types";
import { labelOf } from "../campaign/data/values";
import { bytes, short } from "../format";
import { Field } from "../ui/basics";
import { ErrorState, LoadingState } from "../ui/states";
import { toggled } from "./campaign_table";

/** What the form asks for; "" leaves a key out. */
export const FIRST_FORM = {
  workload: "torch",
  command: "",
  directory: "",
  script: "",
  name: "campaign",
  model: "gpt-micro",
  cluster: "local-cpu",
  nodes: "",
  globalBatch: "8",
  dtype: "",
  objective: "tokens_per_s_per_device",
  search: "physics",
  runner: "local",
  trials: "15",
  deviceHours: "",
  wallHours: "",
  parallel: "1",
  catalogs: [] as string[],
  baseline: false,
  tp: "1",
  pp: "1",
  micro_batch_size: "1",
  zero_stage: "0",
};

/** The axes of a baseline that the form asks for. */
export const BASELINE = ["tp", "pp", "micro_batch_size", "zero_stage"] as const;

export type SpecForm = typeof FIRST_FORM;

const CODES: Readonly<Record<string, string>> = {
  torch: "the built-in trainer",
  command: "a command of my own",
  megatron: "Megatron-LM",
  deepspeed: "DeepSpeed",
  simulated: "simulated: nothing trains",
};

interface FormProps {
  form: SpecForm;
  onForm: (form: SpecForm) => void;
}

export function CreateForm(own: FormProps) {
  const presets = useResource<PresetsView>("presets");
  const registry = useResource<RegistryView>("registry");
  const problem = presets.problem ?? registry.problem;
  if (problem) return <ErrorState problem={problem} onRetry={presets.problem ? presets.refresh : registry.refresh} />;
  if (!presets.data || !registry.data) return <LoadingState lines={8} height={44} />;
  return <Fields {...own} presets={presets.data} registry={registry.data} />;
}

function Fields({ form, onForm, presets, registry }: FormProps & { presets: PresetsView; registry: RegistryView }) {
  const set = (change: Partial<SpecForm>) => onForm({ ...form, ...change });
  const models = presets.models.map(({ name, parameters }) => [name, `${name} (${short(parameters)})`] as const);
  const clusters = presets.clusters.map((one) => [one.name, `${one.name} (${one.nodes} × ${one.devices_per_node}, ${bytes(one.memory_bytes)})`] as const);
  const catalogs = registry.knobs_of[form.workload] ?? [];
  const simulated = form.workload === "simulated";
  const take = (workload: string) => {
    const known = registry.knobs_of[workload] ?? [];
    const runner = workload === "simulated" ? "simulated" : simulated ? "local" : form.runner;
    set({ workload, runner, catalogs: form.catalogs.filter((name) => known.includes(name)) });
  };
  const of = (key: TextKey) => ({ value: form[key], onValue: (value: string) => set({ [key]: value }) });
  const text = (key: TextKey, label: string, empty = "") => <Text label={label} empty={empty} {...of(key)} />;
  const select = (key: TextKey, label: string, options: Options) => <Select label={label} options={options} {...of(key)} />;
  return (
    <div class="fields">
      <div class="wide">
        <Select label="Training code" value={form.workload} options={registry.workloads.map((name) => [name, CODES[name] ?? name])} onValue={take} />
      </div>
      {form.workload === "command" && <div class="wide">{text("command", "Command", "torchrun … train.py --batch {micro_batch_size}")}</div>}
      {!["torch", "command", "simulated"].includes(form.workload) && text("directory", "Folder of the code")}
      {form.workload === "deepspeed" && text("script", "Script")}
      {form.workload === "torch" && select("dtype", "Number format", [["", "by device"], ...plain(["float32", "bfloat16"])])}
      {text("name", "Name")}
      {select("model", "Model", models)}
      {select("cluster", "Cluster", clusters)}
      {text("nodes", "Nodes", "the preset's")}
      {text("globalBatch", "Global batch, sequences")}
      {select("runner", "Runner", plain(registry.runners.filter((name) => (name === "simulated") === simulated)))}
      {select("objective", "Objective", registry.objectives.map(({ name, words }) => [name, words]))}
      {select("search", "Search", plain(registry.searches))}
      {text("parallel", "Trials in flight")}
      {text("trials", "Trials, at most", "no limit")}
      {text("deviceHours", "Device-hours, at most", "no limit")}
      {text("wallHours", "Hours, at most", "no limit")}
      {catalogs.length > 0 && (
        <fieldset class="wide">
          <legend>Knobs beside the layout, by catalog</legend>
          <div class="row">
            {catalogs.map((name) => (
              <label key={name}>
                <input type="checkbox" checked={form.catalogs.includes(name)} onChange={() => set({ catalogs: toggled(form.catalogs, name) })} /> {name}
              </label>
            ))}
          </div>
        </fieldset>
      )}
      <label class="wide">
        <input type="checkbox" checked={form.baseline} onChange={(event) => set({ baseline: event.currentTarget.checked })} /> Baseline: the plan in
        use today runs first
      </label>
      {form.baseline && BASELINE.map((axis) => text(axis, labelOf(axis)))}
    </div>
  );
}

type TextKey = Exclude<keyof SpecForm, "baseline" | "catalogs">;
type Options = readonly (readonly [string, string])[];

/** Options that are called what they are. */
export function plain(names: readonly string[]): Options {
  return names.map((name) => [name, name]);
}

interface Written {
  label: string;
  value: string;
  onValue: (value: string) => void;
}

/** empty: what an empty field means. */
export function Text({ label, value, empty = "", hint, onValue }: Written & { empty?: string; hint?: string }) {
  return (
    <Field label={label} {...(hint && { hint })}>
      <input value={value} placeholder={empty} autocomplete="off" spellcheck={false} onInput={(event) => onValue(event.currentTarget.value)} />
    </Field>
  );
}

export function Select({ label, value, options, onValue }: Written & { options: Options }) {
  return (
    <Field label={label}>
      <select value={value} onChange={(event) => onValue(event.currentTarget.value)}>
        {options.map(([name, words]) => (
          <option key={name} value={name}>
            {words}
          </option>
        ))}
      </select>
    </Field>
  );
}
