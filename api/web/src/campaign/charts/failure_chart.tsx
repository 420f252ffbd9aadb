/** Whether the search learnt to avoid failures: their share in windows of trials, and of all so far. */
import { useCallback, useMemo } from "preact/hooks";
import uPlot from "uplot";
import type { Analysis } from "../../api/types";
import { count, share } from "../../format";
import { Card } from "../../ui/basics";
import { LoadingState } from "../../ui/states";
import { failureWords } from "../../words";
import { setConditions, wordOf } from "../data/conditions";
import type { Palette } from "./palette";
import { axisOf, Plot, type PlotOptions, wholeAxis } from "./plot";

const HEIGHT = 190;

export function FailureChart({ analysis }: { analysis: Analysis | undefined }) {
  return (
    <Card title="Failures over time" testid="failures">
      {analysis === undefined ? (
        <LoadingState lines={4} height={36} />
      ) : analysis.failures.all === null ? (
        <p class="muted">No trial has ended yet.</p>
      ) : (
        <Rates failures={analysis.failures} />
      )}
    </Card>
  );
}

function Rates({ failures }: { failures: Analysis["failures"] }) {
  const { windows, so_far } = failures;
  const data = useMemo<uPlot.AlignedData>(() => {
    const rates = new Map(windows.map((window) => [window.first, window.rate]));
    // Steps hold their value to the next point, so the last window is ended by hand.
    const held = so_far.map(({ trial }, at) => rates.get(trial) ?? (at === so_far.length - 1 ? windows.at(-1)!.rate : undefined));
    return [so_far.map(({ trial }) => trial), held as (number | null)[], so_far.map(({ rate }) => rate)];
  }, [windows, so_far]);
  const describe = useCallback(
    (index: number | null) => {
      const trial = index === null ? undefined : so_far[index]?.trial;
      const window = trial === undefined ? undefined : windows.find(({ first, last }) => first <= trial && trial <= last);
      if (window) {
        const kinds = Object.entries(window.verdicts).map(([verdict, times]) => `${times} ${wordOf(verdict)}`);
        return `Trials ${window.first} to ${window.last}: ${share(window.rate, 2)} failed (${kinds.join(", ")})`;
      }
      const { failed, trials, rate } = failures.all!;
      return `${count(failed)} of ${count(trials)} failed: ${share(rate, 2)}`;
    },
    [failures],
  );
  const select = (low: number, high: number) => setConditions({ number: { kind: "range", low: Math.ceil(low), high: Math.floor(high) } });
  return (
    <>
      <Plot label={`Failures over time. ${describe(null)}. Last window: ${share(windows.at(-1)?.rate, 2)}.`} height={HEIGHT} data={data} options={optionsOf} describe={describe} onSelect={select} />
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
          {knob} {String(value)}: {count(failed)} of {count(trials)} failed{failed > 0 && ` (${failureWords(causes)})`}
        </li>
      ))}
    </ul>
  );
}

function optionsOf(palette: Palette): PlotOptions {
  const stepped = uPlot.paths.stepped!({ align: 1 });
  return {
    scales: { y: { range: (_, _low, high) => [0, Math.max(0.1, Math.min(1, (high ?? 0) * 1.1))] } },
    axes: [wholeAxis(palette), axisOf(palette, (value) => share(value, 2), 48)],
    series: [
      {},
      { paths: stepped, stroke: palette.failed, fill: palette.failed.replace(/^rgb\((.*)\)$/, "rgba($1, 0.25)"), width: 1, spanGaps: true, points: { show: false } },
      { stroke: palette.ink, width: 1.5, points: { show: false } },
    ],
  };
}
