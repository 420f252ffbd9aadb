/** Which knobs decide the speed, and what turning each was worth, in words. */
import type { Analysis } from "../../api/types";
import { share } from "../../format";
import { Card } from "../../ui/basics";
import { EmptyState, LoadingState } from "../../ui/states";

const MOST_EFFECTS = 6;

export function SensitivityCard({ analysis }: { analysis: Analysis | undefined }) {
  return (
    <Card title="What matters" testid="sensitivity">
      {analysis === undefined ? <LoadingState lines={6} /> : <Findings analysis={analysis} />}
    </Card>
  );
}

function Findings({ analysis: { sensitivity, effects } }: { analysis: Analysis }) {
  const { importances, nothing } = sensitivity;
  const most = importances[0]?.share ?? 1;
  return (
    <>
      {nothing !== "" && (
        <EmptyState title="Nothing to say yet">
          <p class="muted">{nothing}</p>
        </EmptyState>
      )}
      {importances.length > 0 && (
        <dl class="bars" title={`Share of the variance among ${sensitivity.plans} measured plans (${sensitivity.method})`}>
          {importances.map((one) => (
            <div key={one.knob}>
              <dt>{one.knob}</dt>
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
            <li key={effect.words}>{effect.words}</li>
          ))}
        </ul>
      )}
    </>
  );
}
