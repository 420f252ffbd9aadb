/** Every step that was run, in order: first those that warmed up, then the timed ones with their median and interval. */
import { useCallback, useMemo } from "preact/hooks";
import uPlot from "uplot";
import type { MeasurementView, PartialView } from "../api/types";
import type { Palette } from "../campaign/charts/palette";
import { axisOf, Plot, type PlotOptions, wholeAxis } from "../campaign/charts/plot";
import { interval as intervalWords, stepTime } from "../format";
import { Card } from "../ui/basics";

/** Warming up is drawn up to so many medians; what took longer lies at the upper edge. */
const MOST = 1.25;

interface StepTimesProps {
  measured: MeasurementView | PartialView;
  /** The measurement itself; null of a pruned trial, whose steps measure nothing. */
  interval: MeasurementView | null;
}

export function StepTimes({ measured, interval }: StepTimesProps) {
  const { warmup_times_s: warmup, step_times_s: timed } = measured;
  const data = useMemo<uPlot.AlignedData>(() => {
    // The first steps may take many times as long as the others, whose differences are what the plot is for.
    const top = Math.max(...timed, interval?.step_time_high_s ?? 0, measured.step_time_s * MOST);
    const steps = [...warmup, ...timed].map((_, at) => at + 1);
    const level = (value: number | undefined) => steps.map((_, at) => (at < warmup.length ? null : (value ?? null)));
    return [
      steps,
      level(interval?.step_time_low_s),
      level(interval?.step_time_high_s),
      level(measured.step_time_s),
      [...warmup.map((time) => Math.min(time, top)), ...timed.map(() => null)],
      [...warmup.map(() => null), ...timed],
    ];
  }, [measured, interval]);
  const describe = useCallback(
    (index: number | null) => {
      if (index === null) {
        const range = interval ? `, 95 %: ${intervalWords(interval.step_time_low_s, interval.step_time_high_s, stepTime)}` : "";
        return `Median of ${timed.length} timed steps: ${stepTime(measured.step_time_s)}${range}`;
      }
      const warms = index < warmup.length;
      return `Step ${index + 1}${warms ? ", warming up" : ""}: ${stepTime(warms ? warmup[index] : timed[index - warmup.length])}`;
    },
    [measured, interval],
  );
  return (
    <Card title="Step times" testid="step-times">
      <Plot label={`Step times. ${describe(null)}; ${warmup.length} steps warmed up.`} height={230} data={data} options={optionsOf} describe={describe} />
      <ul class="chart-legend">
        {warmup.length > 0 && <li><span class="mark-key warm" /> warming up, not counted{Math.max(...warmup) > measured.step_time_s * MOST && " (the longest at the upper edge)"}</li>}
        <li><span class="mark-key point" /> timed step</li>
        <li><span class="mark-key best" /> median{interval && " with 95 % interval"}</li>
      </ul>
    </Card>
  );
}

function optionsOf(palette: Palette): PlotOptions {
  const points = (fill: string): uPlot.Series => ({ paths: () => null, points: { show: true, size: 6, width: 0, fill } });
  const edge: uPlot.Series = { points: { show: false } };
  return {
    axes: [wholeAxis(palette), axisOf(palette, stepTime, 62)],
    series: [{}, edge, edge, { stroke: palette.best, width: 2, points: { show: false } }, points(palette.pruned), points(palette.accent)],
    bands: [{ series: [2, 1], fill: palette.best.replace(/^rgb\((.*)\)$/, "rgba($1, 0.18)") }],
  };
}
