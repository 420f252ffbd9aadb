/** Whether the search learnt to avoid failures: their share in windows of trials, and of all so far. */
import type { Analysis } from "../../api/types";
import { count, share } from "../../format";
import { Card } from "../../ui/basics";
import { failureWords } from "../../words";
import { setConditions } from "../data/conditions";
import { rangeOf } from "../data/filters";
import { labelOf } from "../data/values";
import { numbers, whole } from "./axes";
import { Chart, type Frame } from "./chart";
import { box } from "./marks";
import { toPixel } from "./scales";

const MOST_VALUES = 8;

/** Of one window there is nothing to compare. */
export function FailureChart({ analysis: { failures } }: { analysis: Analysis }) {
  const { windows, by_value, all } = failures;
  if (windows.length < 2 || all!.failed === 0) return null;
  const describe = (index: number | null) => {
    const { first, last, failed, trials, rate } = index === null ? all! : windows[index]!;
    return `Trials ${first} to ${last}: ${count(failed)} of ${count(trials)} failed, ${share(rate, 2)}`;
  };
  const draw = ({ x, y, bottom }: Frame) => {
    const bars = windows.map(({ first, last, rate }) => {
      const [from, to, top] = [toPixel(x, first - 0.4), toPixel(x, last + 0.4), toPixel(y, rate)];
      return box(from, top, to - from, bottom - top);
    });
    return <path class="windows" d={bars.join("")} />;
  };
  return (
    <Card title={`Failures in windows of ${windows[0]!.trials} trials`} testid="failures">
      <Chart
        label={`Failures over time. ${describe(null)}. Last window: ${share(windows.at(-1)!.rate, 2)}.`}
        height={190}
        x={whole([0, ...windows.map(({ last }) => last)], "trial")}
        y={numbers([0.1, ...windows.map(({ rate }) => rate)], { format: share, fromZero: true, title: "share of trials that failed" })}
        points={windows.map(({ first, last, rate }) => [(first + last) / 2, rate])}
        describe={describe}
        onSelect={(ends) => setConditions({ number: rangeOf(ends, true) })}
      >
        {draw}
      </Chart>
      <ByValue values={by_value} />
    </Card>
  );
}

/** The values of knobs under which most trials failed. */
function ByValue({ values }: { values: Analysis["failures"]["by_value"] }) {
  const rate = ({ failed, trials }: (typeof values)[number]) => failed / trials;
  const failing = values.filter(({ failed }) => failed > 0).sort((a, b) => rate(b) - rate(a));
  if (failing.length === 0) return null;
  return (
    <ul class="effects small" data-testid="failures-by-value">
      {failing.slice(0, MOST_VALUES).map(({ knob, value, trials, failed, causes }) => (
        <li key={`${knob}=${value}`}>
          {labelOf(knob)} {String(value)}: {count(failed)} of {count(trials)} failed ({failureWords(causes)})
        </li>
      ))}
    </ul>
  );
}
