/** Every step that was run, in order: first those that warmed up, then the timed ones with their mean and interval. */
import type { TrialView } from "../api/types";
import { numbers, whole } from "../campaign/charts/axes";
import { Chart, type Frame } from "../campaign/charts/chart";
import { box, line, marks, type Point } from "../campaign/charts/marks";
import { toPixel } from "../campaign/charts/scales";
import { counted, duration, interval as intervalWords, stepTime } from "../format";
import { Card } from "../ui/basics";

/** Warming up is drawn up to so many means; what took longer lies at the upper edge. */
const MOST = 1.25;

export function StepTimes({ trial: { measurement: given, partial } }: { trial: TrialView }) {
  const { warmup_times_s: warmup, step_times_s: timed, step_time_s: mean } = (given ?? partial)!;
  // The steps of a pruned trial measure nothing, and one step says nothing of how far they lie apart.
  const interval = given && timed.length > 1 && given.step_time_low_s < given.step_time_high_s ? given : null;
  // The first steps may take many times as long as the others, whose differences are what the chart is for.
  const top = Math.max(...timed, interval?.step_time_high_s ?? 0, mean * MOST);
  const points = [...warmup.map((time) => Math.min(time, top)), ...timed].map((time, at) => [at + 1, time] as const);
  const describe = (index: number | null) => {
    if (index === null) {
      const range = interval ? `, 95 %: ${intervalWords(interval.step_time_low_s, interval.step_time_high_s, stepTime)}` : "";
      return `Mean of ${counted(timed.length, "timed step")}: ${stepTime(mean)}${range}`;
    }
    const warms = index < warmup.length;
    return `Step ${index + 1}${warms ? ", warming up" : ""}: ${stepTime(warms ? warmup[index] : timed[index - warmup.length])}`;
  };
  const draw = ({ x, y, right }: Frame) => {
    const at = points.map(([step, time]): Point => [toPixel(x, step), toPixel(y, time)]);
    const left = toPixel(x, warmup.length + 1);
    const high = interval ? toPixel(y, interval.step_time_high_s) : 0;
    return (
      <>
        {interval && <path class="band" data-testid="interval" d={box(left, high, right - left, toPixel(y, interval.step_time_low_s) - high)} />}
        <path class="best-line" d={line([[left, toPixel(y, mean)], [right, toPixel(y, mean)]])} />
        <path class="dots warm" d={marks(at.slice(0, warmup.length), "square")} />
        <path class="dots" d={marks(at.slice(warmup.length), "disc")} />
      </>
    );
  };
  const ends = interval ? [interval.step_time_low_s, interval.step_time_high_s] : [];
  return (
    <Card title="Step times" testid="step-times">
      <Chart
        label={`Step times. ${describe(null)}; ${warmup.length} steps warmed up.`}
        height={230}
        x={whole(points.map(([step]) => step), "step")}
        y={numbers([...points.map(([, time]) => time), ...ends], { format: stepTime, room: 0.05 })}
        points={points}
        describe={describe}
      >
        {draw}
      </Chart>
      <ul class="chart-legend">
        {warmup.length > 0 && <li><span class="mark-key warm" /> warming up{Math.max(...warmup) > mean * MOST && " (longest at the edge)"}</li>}
        {given?.compile_s != null && <li>compiling took {duration(given.compile_s)} before them</li>}
        <li><span class="mark-key dots" /> timed step</li>
        <li><span class="mark-key best" /> mean{interval && " with 95 % interval"}</li>
      </ul>
    </Card>
  );
}
