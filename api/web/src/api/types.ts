/** The documents of REST /v1. Their types are generated from the service's OpenAPI document (`make api-types`); only what
 * the document leaves open is said here. */
import type { Budget, CampaignPage as Page, CampaignView as View, CampaignSpec, Plan } from "./openapi";

export type * from "./openapi";

/** One value of a knob, or of an axis of a plan. */
export type KnobValue = boolean | number | string;
export type Knob = Extract<NonNullable<CampaignSpec["knobs"]>, readonly unknown[]>[number];

/** A spec as the service shows it, complete: the document describes what may be sent, where names stand for values. */
export interface SpecView {
  name: string;
  model: { name?: string; seq_len?: number; [key: string]: unknown };
  cluster: { name?: string; device?: { name?: string; memory_bytes?: number; [key: string]: unknown }; [key: string]: unknown };
  workload: { kind: string; [option: string]: unknown };
  runner: { kind: string; [option: string]: unknown };
  objective: string;
  budget: Required<Budget>;
  baseline?: Plan;
  knobs?: readonly Knob[];
  [key: string]: unknown;
}

type Summary = Omit<View["summary"], "budget"> & { budget: Required<Budget> };

export type CampaignView = Omit<View, "spec" | "summary"> & { spec: SpecView; summary: Summary };
export type CampaignPage = Omit<Page, "campaigns"> & { campaigns: CampaignView[] };
