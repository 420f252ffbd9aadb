/** A plan that a person wants to see tried: every axis and knob, and why it cannot be run where it cannot. */
import { useState } from "preact/hooks";
import { useAct } from "../../api/act";
import { newKey, post } from "../../api/client";
import type { CampaignView, KnobValue, Plan, TrialView } from "../../api/types";
import { go, href } from "../../router";
import { Button, Field } from "../../ui/basics";
import { Dialog } from "../../ui/dialog";
import { ErrorState } from "../../ui/states";
import { type Dimension, dimensionsOf, INACTIVE } from "../data/values";
import { followed, planOf, type Typed, typedOf } from "../data/plan_form";

interface EnqueueProps {
  campaign: CampaignView;
  path: string;
  /** The plan to begin with. */
  start: Plan | undefined;
  onDone: () => void;
  onClose: () => void;
}

export function Enqueue({ campaign, path, start, onDone, onClose }: EnqueueProps) {
  const act = useAct();
  const dimensions = dimensionsOf(campaign);
  const [typed, type] = useState<Typed>(() => typedOf(dimensions, start));
  const [key, setKey] = useState(newKey);
  const set = (name: string, value: string) => {
    type(followed({ ...typed, [name]: value }, name, campaign));
    setKey(newKey());
    act.forget();
  };
  const send = () =>
    act.run(async () => {
      const plan: Partial<Plan> = planOf(dimensions, typed);
      const trial = await post<TrialView>(`${path}/trials`, { body: { plan }, idempotencyKey: key });
      onDone();
      go(href({ page: "trial", id: campaign.id, number: trial.number }));
    });
  return (
    <Dialog title="Try a plan by hand" onClose={onClose} testid="enqueue">
      <form
        class="pile stretch"
        onSubmit={(event) => {
          event.preventDefault();
          void send();
        }}
      >
        <p class="muted">Data and accumulation follow the devices and the batch until you change them.</p>
        <div class="four">
          {dimensions.map((one) => (
            <PlanField key={one.name} dimension={one} value={typed[one.name] ?? ""} choices={choicesOf(one, campaign)} onValue={(value) => set(one.name, value)} />
          ))}
        </div>
        {act.problem && <ErrorState problem={act.problem} />}
        <div class="dialog-actions">
          <Button onClick={onClose}>Back</Button>
          <Button type="submit" kind="primary" busy={act.busy}>Try it</Button>
        </div>
      </form>
    </Dialog>
  );
}

/** Of an axis of words its words, of a knob its values and none where it is inactive; of a number any. */
function choicesOf({ name, label, values }: Dimension, { spec: { knobs = [] } }: CampaignView): readonly KnobValue[] {
  const knob = name.startsWith("knobs.") ? knobs.find((one) => one.name === label) : undefined;
  if (knob === undefined) return values;
  return knob.when ? [...knob.values, INACTIVE] : knob.values;
}

function PlanField({ dimension, value, choices, onValue }: { dimension: Dimension; value: string; choices: readonly KnobValue[]; onValue: (value: string) => void }) {
  return (
    <Field label={dimension.label}>
      {choices.length > 0 ? (
        <select title={dimension.title} value={value} onChange={(event) => onValue(event.currentTarget.value)}>
          {choices.map((one) => <option key={String(one)} value={String(one)}>{String(one)}</option>)}
        </select>
      ) : (
        <input title={dimension.title} inputMode="numeric" required pattern="[0-9]+" value={value} onInput={(event) => onValue(event.currentTarget.value.trim())} />
      )}
    </Field>
  );
}
