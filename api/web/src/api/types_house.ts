/** Before a campaign: predictions and quotes, spaces, presets, examples, and what is installed. */
import type { Cause, Estimate, Plan, Verdict } from "./types";

export type Knob = boolean | number | string;

export interface BasisView {
  calibrated: boolean;
  campaign: string | null;
  learnt_from: Record<string, number>;
  words: string;
}

export interface Span {
  low: number;
  high: number;
}

export interface PredictionView {
  plan: Plan;
  plan_key: string;
  p_fits: number;
  peak_bytes: Estimate;
  memory_parts_bytes: Record<string, number>;
  speed: {
    step_s: Estimate;
    tokens_per_s: Estimate;
    tflops_per_device: number;
    mfu: number;
    parts_s: Record<string, number>;
  } | null;
}

export interface QuoteView {
  name: string;
  model: string;
  cluster: string;
  devices: number;
  device: string;
  framework: string;
  space: { combinations: number; legal: number; rejected: Record<string, number> };
  fit: { expected: number; sure: number; likely: number; unlikely: number; hopeless: number };
  best: PredictionView[];
  cost: {
    trials: number;
    steps: [number, number] | null;
    startup_s: number;
    trial_s: Span;
    device_hours: Span;
    wall_s: Span;
    ends_before: string[];
  };
  missing: { path: string; message: string }[];
  basis: BasisView;
}

export interface SpaceView {
  combinations: number;
  legal: number;
  rejected: Record<string, number>;
  dimensions: Record<string, Knob[]>;
}

export interface WhyView {
  plan: Plan;
  plan_key: string;
  legal: boolean;
  violations: { constraint: string; message: string; reason: string }[];
  trial: number | null;
  prediction: PredictionView | null;
}

export interface PresetsView {
  models: {
    name: string;
    parameters: number;
    layers: number;
    hidden_size: number;
    seq_len: number;
    experts: number | null;
    source: string;
  }[];
  clusters: {
    name: string;
    nodes: number;
    devices_per_node: number;
    device: string;
    memory_bytes: number;
    source: string;
  }[];
}

export interface ExamplesView {
  examples: { name: string; title: string; yaml: string }[];
}

export interface RegistryView {
  workloads: string[];
  runners: string[];
  searches: string[];
  objectives: { name: string; unit: string; smaller_is_better: boolean; words: string }[];
  export_formats: { name: string; words: string }[];
  dimensions: string[];
  verdicts: Verdict[];
  causes: Cause[];
}
