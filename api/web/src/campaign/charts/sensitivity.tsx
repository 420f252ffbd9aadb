/** Which knobs decide the speed. */
import type { Analysis } from "../../api/types";
import { share } from "../../format";
import { Card } from "../../ui/basics";
import { LoadingState } from "../../ui/states";
import { type Dimension, labelOf } from "../data/values";

const MOST_KNOBS = 8;

interface SensitivityProps {
  analysis: Analysis | undefined;
  /** All of the campaign's. */
  dimensions: readonly Dimension[];
}

export function SensitivityCard({ analysis, dimensions }: SensitivityProps) {
  if (!analysis) return <Card title="What matters" testid="sensitivity"><LoadingState lines={6} /></Card>;
  const { importances, plans, method } = analysis.sensitivity;
  if (importances.length === 0) return null;
  return (
    <Card title="What matters" testid="sensitivity">
      <dl class="bars" title={`Share of the variance among ${plans} measured plans (${method})`}>
        {importances.slice(0, MOST_KNOBS).map((one) => (
          <div key={one.knob}>
            <dt title={dimensions.find(({ name, label }) => [name, label].includes(one.knob))?.title}>{labelOf(one.knob)}</dt>
            <dd><span class="bar" style={{ width: `${(100 * one.share) / importances[0]!.share}%` }} aria-hidden="true" /></dd>
            <dd class="num">{share(one.share, 2)}</dd>
          </div>
        ))}
      </dl>
    </Card>
  );
}

/** Those that decide most come first; of others the order stays. */
export function byImportance(dimensions: readonly Dimension[], analysis: Analysis | undefined): readonly Dimension[] {
  const names = analysis?.sensitivity.importances.map(({ knob }) => labelOf(knob)) ?? [];
  const place = ({ label }: Dimension) => names.indexOf(label) + 1 || names.length + 1;
  return [...dimensions].sort((a, b) => place(a) - place(b));
}
