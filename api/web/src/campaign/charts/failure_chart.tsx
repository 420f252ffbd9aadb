/** Whether the search learnt to avoid failures: their share in windows of trials, and of all so far. */
import type { Analysis } from "../../api/types";
import { count, share } from "../../format";
import { Card } from "../../ui/basics";
import { failureWords } from "../../words";
import { setConditions, wordOf } from "../data/conditions";
import { rangeOf } from "../data/filters";
import { labelOf } from "../data/values";
import { numbers, whole } from "./axes";
import { Chart, type Frame } from "./chart";
import { box, line } from "./marks";
import { toPixel } from "./scales";

/** Of one window there is nothing to compare. */
export function FailureChart({ analysis: { failures } }: { analysis: Analysis }) {
  if (failures.windows.length < 2 || failures.all!.failed === 0) return null;
  return (
    <Card title="Failures over time" testid="failures">
      <Rates failures={failures} />
    </Card>
  );
}

function Rates({ failures }: { failures: Analysis["failures"] }) {
  const { windows, so_far } = failures;
  const describe = (index: number | null) => {
    const trial = index === null ? undefined : so_far[index]?.trial;
    const window = trial === undefined ? undefined : windows.find(({ first, last }) => first <= trial && trial <= last);
    if (window) {
      const kinds = Object.entries(window.verdicts).map(([verdict, times]) => `${times} ${wordOf(verdict)}`);
      return `Trials ${window.first} to ${window.last}: ${share(window.rate, 2)} failed (${kinds.join(", ")})`;
    }
    const { failed, trials, rate } = failures.all!;
    return `${count(failed)} of ${count(trials)} trials failed: ${share(rate, 2)}`;
  };
  const draw = ({ x, y, bottom }: Frame) => {
    const held = windows.map(({ first, last, rate }) => [toPixel(x, first), toPixel(x, last), toPixel(y, rate)] as const);
    return (
      <>
        <path class="window-area" d={held.map(([from, to, top]) => box(from, top, Math.max(1, to - from), bottom - top)).join("")} />
        <path class="window-line" d={held.map(([from, to, top]) => line([[from, top], [to, top]])).join("")} />
        <path class="dark-line" d={line(so_far.map(({ trial, rate }) => [toPixel(x, trial), toPixel(y, rate)]))} />
      </>
    );
  };
  return (
    <>
      <Chart
        label={`Failures over time. ${describe(null)}. Last window: ${share(windows.at(-1)?.rate, 2)}.`}
        height={190}
        x={whole([...so_far.map(({ trial }) => trial), ...windows.map(({ last }) => last)], "trial")}
        y={numbers([0.1, ...[...windows, ...so_far].map(({ rate }) => rate)], { format: share, fromZero: true, title: "share of failed trials" })}
        points={so_far.map(({ trial, rate }) => [trial, rate])}
        describe={describe}
        onSelect={(ends) => setConditions({ number: rangeOf(ends, true) })}
      >
        {draw}
      </Chart>
      <ul class="chart-legend">
        <li><span class="mark-key window" /> windows of {windows[0]?.trials ?? 10} trials</li>
        <li><span class="mark-key dark" /> all so far</li>
      </ul>
      <ByValue values={failures.by_value} />
    </>
  );
}

/** Of the knobs under which some trial failed. */
function ByValue({ values }: { values: Analysis["failures"]["by_value"] }) {
  const failing = new Set(values.filter(({ failed }) => failed > 0).map(({ knob }) => knob));
  const shown = values.filter(({ knob, trials }) => failing.has(knob) && trials > 0);
  if (shown.length === 0) return null;
  return (
    <ul class="effects small" data-testid="failures-by-value">
      {shown.map(({ knob, value, trials, failed, causes }) => (
        <li key={`${knob}=${value}`}>
          {labelOf(knob)} {String(value)}: {count(failed)} of {count(trials)} failed{failed > 0 && ` (${failureWords(causes)})`}
        </li>
      ))}
    </ul>
  );
}
