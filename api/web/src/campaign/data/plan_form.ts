/** A plan as the fields of a form, and back. */
import type { CampaignView, KnobValue, Plan } from "../../api/types";
import { DEFAULTS, type Dimension, INACTIVE } from "./values";

/** What stands in each field, by the dimension's name. */
export type Typed = Readonly<Record<string, string>>;

export function typedOf(dimensions: readonly Dimension[], plan: Plan | undefined): Typed {
  return Object.fromEntries(
    dimensions.map(({ name, label, values }) => {
      const known = (plan as Record<string, unknown> | undefined)?.[name] ?? plan?.knobs?.[label];
      return [name, String(known ?? DEFAULTS[name] ?? values[0] ?? 1)];
    }),
  );
}

/** A changed layout fills the same devices, and trains with the same global batch, where whole numbers can. */
export function followed(typed: Typed, changed: string, { devices, spec: { global_batch_size: batch } }: Pick<CampaignView, "devices" | "spec">): Typed {
  const of = (name: string) => Number(typed[name]);
  const after: Record<string, string> = { ...typed };
  const put = (name: string, value: number) => {
    if (Number.isInteger(value) && value > 0) after[name] = String(value);
  };
  if (["tp", "pp", "cp"].includes(changed)) put("dp", devices / (of("tp") * of("pp") * of("cp")));
  if (["tp", "pp", "cp", "dp", "micro_batch_size"].includes(changed)) put("grad_accum_steps", Number(batch) / (of("micro_batch_size") * Number(after["dp"])));
  return after;
}

export function planOf(dimensions: readonly Dimension[], typed: Typed): Partial<Plan> {
  const axes: Record<string, KnobValue> = {};
  const knobs: Record<string, KnobValue> = {};
  for (const { name, label, values } of dimensions) {
    const word = typed[name]!;
    const value = values.find((one) => String(one) === word) ?? (/^-?[\d.]+$/.test(word) ? Number(word) : word);
    if (name.startsWith("knobs.")) {
      if (word !== INACTIVE) knobs[label] = value;
    } else axes[name] = value;
  }
  return { ...axes, knobs } as Partial<Plan>;
}
