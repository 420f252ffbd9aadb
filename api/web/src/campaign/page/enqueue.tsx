/** A plan that a person wants to see tried: every axis and knob, and why it cannot be run where it cannot. */
import { useState } from "preact/hooks";
import { useAct } from "../../api/act";
import { newKey, post } from "../../api/client";
import type { CampaignView, KnobValue, TrialBrief, TrialView } from "../../api/types";
import { go, href } from "../../router";
import { Field } from "../../ui/basics";
import { Confirm } from "../../ui/dialog";
import { ErrorState } from "../../ui/states";
import { type Dimension, dimensionsOf, INACTIVE } from "../data/values";
import type { AskedProps } from "./more";
import { followed, planOf, type Typed, typedOf } from "../data/plan_form";

export function Enqueue({ campaign, path, trials, onDone, onClose }: AskedProps & { trials: readonly TrialBrief[] }) {
  const act = useAct();
  const dimensions = dimensionsOf(campaign);
  const good = campaign.summary.recommended ?? campaign.summary.fastest_once;
  const start = trials.find(({ number }) => number === good?.trial)?.plan ?? campaign.spec.baseline;
  const [typed, type] = useState<Typed>(() => typedOf(dimensions, start));
  const [key, setKey] = useState(newKey);
  const set = (name: string, value: string) => {
    type(followed({ ...typed, [name]: value }, name, campaign));
    setKey(newKey());
    act.forget();
  };
  const send = () =>
    act.run(async () => {
      const trial = await post<TrialView>(`${path}/trials`, { body: { plan: planOf(dimensions, typed) }, idempotencyKey: key });
      onDone();
      go(href({ page: "trial", id: campaign.id, number: trial.number }));
    });
  return (
    <Confirm title="Try a plan by hand" action="Try it" busy={act.busy} onConfirm={() => void send()} onClose={onClose} testid="enqueue">
      <p class="muted">Data and accumulation follow the devices and the batch until you change them.</p>
      <div class="four">
        {dimensions.map((one) => {
          const { name, label, title } = one;
          const choices = choicesOf(one, campaign).map(String);
          const field = { title, value: typed[name] ?? "", onInput: ({ currentTarget: { value } }: { currentTarget: { value: string } }) => set(name, value.trim()) };
          return (
            <Field key={name} label={label}>
              {choices.length > 0 ? (
                <select {...field}>{choices.map((value) => <option key={value}>{value}</option>)}</select>
              ) : (
                <input {...field} inputMode="numeric" required pattern="[0-9]+" />
              )}
            </Field>
          );
        })}
      </div>
      {act.problem && <ErrorState problem={act.problem} />}
    </Confirm>
  );
}

/** Of an axis of words its words, of a knob its values and none where it is inactive; of a number any. */
function choicesOf({ name, values }: Dimension, { spec: { knobs = [] } }: CampaignView): readonly KnobValue[] {
  const knob = knobs.find((one) => name === `knobs.${one.name}`);
  return knob ? [...knob.values, ...(knob.when ? [INACTIVE] : [])] : values;
}
