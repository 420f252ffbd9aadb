/** Which knobs decide the speed, and what turning each was worth, in words. */
import type { Analysis } from "../../api/types";
import { count, gain, gainInterval, probability, share } from "../../format";
import { Card } from "../../ui/basics";
import { LoadingState } from "../../ui/states";
import { changeWords } from "../../words";
import { wordOf } from "../data/conditions";
import { type Dimension, labelOf } from "../data/values";
import { titleOf } from "./names";

const MOST_KNOBS = 8;
const MOST_EFFECTS = 6;

interface SensitivityProps {
  analysis: Analysis | undefined;
  /** All of the campaign's. */
  dimensions: readonly Dimension[];
}

export function SensitivityCard({ analysis, dimensions }: SensitivityProps) {
  if (analysis && analysis.sensitivity.importances.length + analysis.effects.length === 0) return null;
  return (
    <Card title="What matters" testid="sensitivity">
      {analysis === undefined ? <LoadingState lines={6} /> : <Findings analysis={analysis} dimensions={dimensions} />}
    </Card>
  );
}

function Findings({ analysis: { sensitivity, effects }, dimensions }: SensitivityProps & { analysis: Analysis }) {
  const { importances } = sensitivity;
  const most = importances[0]?.share ?? 1;
  return (
    <>
      {importances.length > 0 && (
        <dl class="bars" title={`Share of the variance among ${sensitivity.plans} measured plans (${sensitivity.method})`}>
          {importances.slice(0, MOST_KNOBS).map((one) => (
            <div key={one.knob}>
              <dt title={titleOf(dimensions, one.knob)}>{labelOf(one.knob)}</dt>
              <dd>
                <span class="bar" style={{ width: `${(100 * one.share) / most}%` }} aria-hidden="true" />
              </dd>
              <dd class="num">{share(one.share, 2)}</dd>
            </div>
          ))}
        </dl>
      )}
      {effects.length > 0 && (
        <ul class="effects small">
          {effects.slice(0, MOST_EFFECTS).map((effect) => (
            <li key={effect.words} title={titleOf(dimensions, effect.knob)}>{effectWords(effect)}</li>
          ))}
        </ul>
      )}
    </>
  );
}

/** "tensor 8 → 4 with ...: +17.4 % (simulated, 3 pairs, +12.2 to +17.9 %)". */
function effectWords(effect: Analysis["effects"][number]): string {
  const { evidence, pairs, numerics, p_fits, ended } = effect;
  const grounds = [
    evidence,
    pairs > 0 && `${count(pairs)} ${pairs === 1 ? "pair" : "pairs"}`,
    pairs !== 1 && gainInterval(effect.gain),
    numerics && "changes the numerics",
    ended ? `the faster plan was tried: ${wordOf(ended)}` : p_fits !== null && `the faster plan fits with ${probability(p_fits)}`,
  ];
  return `${[effect, ...effect.followers].map(changeWords).join(" with ")}: ${gain(effect.gain.value)} (${grounds.filter(Boolean).join(", ")})`;
}
