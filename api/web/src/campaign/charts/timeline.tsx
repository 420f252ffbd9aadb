/** When each trial ran, and on which node or in which slot of the campaign. */
import { count, counted, duration } from "../../format";
import { go, href } from "../../router";
import { Card } from "../../ui/basics";
import { type Bar, timelineOf } from "../data/lanes";
import { levels, times } from "./axes";
import { Chart, type Frame } from "./chart";
import { cameWords, Dots, OutcomeLegend, outcomesOf, type RunsProps } from "./outcomes";
import { box } from "./marks";
import { toPixel, toValue } from "./scales";

const LANE_PX = 18;
const BAR_PX = 14;
const LEAST_PX = 1.5;

export function TimelineCard({ campaign, goal, trials, shown }: RunsProps) {
  const { names, bars, left } = timelineOf(trials, Date.now());
  // In one lane it says no more than the table.
  if (names.length < 2) return null;
  const visible = bars.filter(({ trial }) => shown.has(trial));
  const ran = [...new Set(bars.map(({ trial }) => trial))];
  const describe = (index: number | null) => {
    if (index === null) return `${counted(ran.length, "trial")} in ${count(names.length)} lanes. Click to open one.`;
    const { trial, from, to, lane } = bars[index]!;
    return `#${trial.number} ${trial.plan_key}, ${names[lane]}: ${cameWords(trial, goal)}, ${duration(to - from)} from ${duration(from)}`;
  };
  const find = (atX: number, atY: number, { x, y }: Frame) => {
    const lane = Math.round(toValue(y, atY));
    const [near, far] = [toValue(x, atX - 3), toValue(x, atX + 3)];
    return bars.findIndex((bar) => bar.lane === lane && bar.from <= far && bar.to >= near);
  };
  const draw = ({ x, y }: Frame) => {
    const path = (some: readonly Bar[]) =>
      some.map(({ from, to, lane }) => box(toPixel(x, from), toPixel(y, lane) - BAR_PX / 2, Math.max(LEAST_PX, toPixel(x, to) - toPixel(x, from) - 0.5), BAR_PX)).join("");
    return (
      <>
        <path class="bars-off" d={path(bars.filter(({ trial }) => !shown.has(trial)))} />
        {outcomesOf(visible).map(([outcome, tone, some]) => (
          <path key={outcome} class={`ran dots-${tone}`} d={path(some)} />
        ))}
        <Dots all={visible} at={({ from, to, lane }) => [toPixel(x, (from + to) / 2), toPixel(y, lane)]} />
      </>
    );
  };
  return (
    <Card title="Timeline of trials" testid="timeline">
      <Chart
        label={`Timeline of trials. ${describe(null)}`}
        height={Math.max(3, names.length) * LANE_PX + 50}
        x={times([0, 1, ...bars.map(({ to }) => to)], { title: "since the first trial started" })}
        y={levels(names, "")}
        points={bars.map(({ from, to, lane }) => [(from + to) / 2, lane])}
        describe={describe}
        find={find}
        onPick={(at) => go(href({ page: "trial", id: campaign.id, number: bars[at]!.trial.number }))}
      >
        {draw}
      </Chart>
      <OutcomeLegend all={ran.map((trial) => ({ trial }))} made="measured" />
      {left > 0 && <p class="muted small">{count(left)} more nodes are not drawn.</p>}
    </Card>
  );
}
