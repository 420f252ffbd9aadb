/** Names of dimensions in words, and their order. A change or an importance says a knob's own name. */
import type { Analysis } from "../../api/types";
import { type Dimension, labelOf } from "../data/values";

/** What a dimension means, or the knob of this name. */
export function titleOf(dimensions: readonly Dimension[], name: string): string | undefined {
  return dimensions.find((one) => one.name === name || one.label === name)?.title;
}

/** Those that decide most come first; of others the order stays. */
export function byImportance(dimensions: readonly Dimension[], analysis: Analysis | undefined): readonly Dimension[] {
  const names = analysis?.sensitivity.importances.map(({ knob }) => labelOf(knob)) ?? [];
  const place = ({ label }: Dimension) => names.indexOf(label) + 1 || names.length + 1;
  return [...dimensions].sort((a, b) => place(a) - place(b));
}
