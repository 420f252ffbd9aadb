/** The small form: presets and the keys that most campaigns set. It writes the spec, which says more than it asks. */
import { useResource } from "../api/resource";
import type { PresetsView, RegistryView } from "../api/types";
import { bytes, short } from "../format";
import { Field } from "../ui/basics";
import { ErrorState, LoadingState } from "../ui/states";
import type { SpecForm } from "./spec_text";

export const FIRST_FORM: SpecForm = {
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
  catalogs: [],
  baseline: false,
  tp: "1",
  pp: "1",
  microBatch: "1",
  zero: "0",
};

const DTYPES = ["float32", "bfloat16"];

interface FormProps {
  form: SpecForm;
  onForm: (form: SpecForm) => void;
}

export function CreateForm({ form, onForm }: FormProps) {
  const presets = useResource<PresetsView>("presets");
  const registry = useResource<RegistryView>("registry");
  const problem = presets.problem ?? registry.problem;
  if (problem)
    return (
      <ErrorState
        problem={problem}
        onRetry={() => {
          presets.refresh();
          registry.refresh();
        }}
      />
    );
  if (!presets.data || !registry.data) return <LoadingState lines={8} height={44} />;
  return <Fields form={form} onForm={onForm} presets={presets.data} registry={registry.data} />;
}

function Fields({ form, onForm, presets, registry }: FormProps & { presets: PresetsView; registry: RegistryView }) {
  const set = (change: Partial<SpecForm>) => onForm({ ...form, ...change });
  const models = presets.models.map(({ name, parameters }) => [name, `${name} (${short(parameters)})`] as const);
  const clusters = presets.clusters.map(
    ({ name, nodes, devices_per_node, memory_bytes }) =>
      [name, `${name} (${nodes} × ${devices_per_node}, ${bytes(memory_bytes)})`] as const,
  );
  const objectives = registry.objectives.map(({ name, words }) => [name, words] as const);
  const plain = (names: string[]) => names.map((name) => [name, name] as const);
  const text = (key: TextKey, label: string, empty = "") => (
    <Text label={label} empty={empty} value={form[key]} onValue={(value) => set({ [key]: value })} />
  );
  const select = (key: TextKey, label: string, options: Options) => (
    <Select label={label} value={form[key]} options={options} onValue={(value) => set({ [key]: value })} />
  );
  return (
    <div class="fields">
      <div class="wide">{text("name", "Name")}</div>
      <div class="wide">{select("model", "Model", models)}</div>
      <div class="wide">{select("cluster", "Cluster", clusters)}</div>
      {text("nodes", "Nodes", "the preset's")}
      {text("globalBatch", "Global batch, sequences")}
      {select("dtype", "Number format", [["", "by device"], ...plain(DTYPES)])}
      {select("runner", "Runner", plain(registry.runners))}
      <div class="wide">{select("objective", "Objective", objectives)}</div>
      {select("search", "Search", plain(registry.searches))}
      {text("parallel", "Trials in flight")}
      <fieldset class="wide">
        <legend>Budget: the first limit that is spent ends it</legend>
        <div class="three">
          {text("trials", "Trials", "no limit")}
          {text("deviceHours", "Device-hours", "no limit")}
          {text("wallHours", "Hours", "no limit")}
        </div>
      </fieldset>
      <fieldset class="wide">
        <legend>Knobs beside the layout: catalogs that the workload knows</legend>
        <div class="row">
          {registry.catalogs.map((name) => (
            <label key={name}>
              <input type="checkbox" checked={form.catalogs.includes(name)} onChange={() => set({ catalogs: toggled(form.catalogs, name) })} /> {name}
            </label>
          ))}
        </div>
      </fieldset>
      <fieldset class="wide">
        <legend>
          <label>
            <input type="checkbox" checked={form.baseline} onChange={(event) => set({ baseline: event.currentTarget.checked })} /> Baseline: the
            plan in use today runs first
          </label>
        </legend>
        {form.baseline && (
          <div class="four">
            {text("tp", "tp")}
            {text("pp", "pp")}
            {text("microBatch", "micro-batch")}
            {text("zero", "ZeRO stage")}
          </div>
        )}
      </fieldset>
    </div>
  );
}

function toggled(names: readonly string[], name: string): string[] {
  return names.includes(name) ? names.filter((one) => one !== name) : [...names, name];
}

type TextKey = Exclude<keyof SpecForm, "baseline" | "catalogs">;
type Options = readonly (readonly [string, string])[];

/** empty: what an empty field means. */
function Text({ label, value, empty, onValue }: { label: string; value: string; empty: string; onValue: (value: string) => void }) {
  return (
    <Field label={label}>
      <input value={value} placeholder={empty} autocomplete="off" spellcheck={false} onInput={(event) => onValue(event.currentTarget.value.trim())} />
    </Field>
  );
}

function Select({ label, value, options, onValue }: { label: string; value: string; options: Options; onValue: (value: string) => void }) {
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
