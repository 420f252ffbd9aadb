/** When each trial ran, and on which node or in which slot of the campaign. */
import { useCallback, useMemo } from "preact/hooks";
import type { CampaignView, TrialBrief } from "../../api/types";
import { useFilter } from "../../filters";
import { count, duration, objective } from "../../format";
import { go, href } from "../../router";
import { Card, Switch } from "../../ui/basics";
import { wordOf } from "../data/conditions";
import type { Goal } from "../data/goal";
import { type Bar, type Lanes, timelineOf } from "../data/lanes";
import { outcomeOf } from "../data/values";
import { levels, times } from "./axes";
import { Chart, type Frame } from "./chart";
import { OutcomeLegend, outcomesOf } from "./outcomes";
import { box } from "./marks";
import { toPixel, toValue } from "./scales";

const LANES: readonly (readonly [Lanes, string])[] = [
  ["node", "by node"],
  ["slot", "by slot"],
];
const MOST_LANES = 32;
const LANE_PX = 18;
const LEAST_PX = 1.5;

interface TimelineProps {
  campaign: CampaignView;
  goal: Goal;
  trials: readonly TrialBrief[];
  shown: ReadonlySet<TrialBrief>;
}

export function TimelineCard({ campaign, goal, trials, shown }: TimelineProps) {
  const [chosen, choose] = useFilter("lanes");
  const named = trials.some(({ nodes }) => nodes.length > 0);
  const by: Lanes = chosen === "slot" || !named ? "slot" : "node";
  const { names, bars, left } = useMemo(() => timelineOf(trials, by, Date.now(), MOST_LANES), [trials, by]);
  const height = Math.max(3, names.length) * LANE_PX + 50;
  const points = useMemo(() => bars.map(({ from, to, lane }) => [(from + to) / 2, lane] as const), [bars]);
  const [x, y] = useMemo(() => [times([0, ...bars.map(({ to }) => to)], { title: "since the first trial started" }), levels(names, "")], [bars, names]);
  const describe = useCallback(
    (index: number | null) => {
      const bar = index === null ? undefined : bars[index];
      if (!bar) return bars.length === 0 ? "No trial has started yet." : `${count(new Set(bars.map(({ trial }) => trial)).size)} trials, at most ${count(names.length)} at once. Click to open one.`;
      const { trial, from, to, lane } = bar;
      return `#${trial.number} ${trial.plan_key}, ${names[lane]}: ${wordOf(outcomeOf(trial))}${trial.objective ? ` ${objective(trial.objective.value, goal.unit)}` : ""}, ${duration(to - from)} from ${duration(from)}`;
    },
    [bars, names, by, goal],
  );
  const find = useCallback(
    (atX: number, atY: number, { x, y }: Frame) => {
      const lane = Math.round(toValue(y, atY));
      const [near, far] = [toValue(x, atX - 3), toValue(x, atX + 3)];
      const found = bars.findIndex((bar) => bar.lane === lane && bar.from <= far && bar.to >= near);
      return found < 0 ? null : found;
    },
    [bars],
  );
  const draw = useCallback(
    ({ x, y }: Frame) => {
      const high = Math.min(14, Math.abs(toPixel(y, 1) - toPixel(y, 0)) - 3);
      const path = (some: readonly Bar[]) =>
        some.map(({ from, to, lane }) => box(toPixel(x, from), toPixel(y, lane) - high / 2, Math.max(LEAST_PX, toPixel(x, to) - toPixel(x, from) - 0.5), high)).join("");
      return (
        <>
          <defs>
            {["oom", "failed"].map((tone) => (
              <pattern key={tone} id={`hatch-${tone}`} class={`tone-${tone}`} width="5" height="5" patternUnits="userSpaceOnUse" patternTransform={`rotate(${tone === "oom" ? 45 : -45})`}>
                <rect width="5" height="5" class="hatch-ground" />
                <rect width="2.5" height="5" class="hatch-line" />
              </pattern>
            ))}
          </defs>
          {outcomesOf(bars, ({ trial }) => trial).map(([outcome, tone, some]) => {
            const [on, off] = [some.filter(({ trial }) => shown.has(trial)), some.filter(({ trial }) => !shown.has(trial))];
            return [
              <path key={`${outcome} off`} class="bars-off" d={path(off)} />,
              <path key={outcome} class={`lane-bars bar-${tone}`} data-testid={`ran-${outcome}`} data-marks={on.length} d={path(on)} />,
            ];
          })}
        </>
      );
    },
    [bars, shown],
  );
  return (
    <Card
      title="Timeline of trials"
      testid="timeline"
      class="wide"
      aside={named && <Switch label="Lanes" options={LANES} value={by} onChange={(lanes) => choose(lanes === "node" ? "" : lanes)} testid="lanes" />}
    >
      {bars.length === 0 ? (
        <p class="muted">No trial has started yet.</p>
      ) : (
        <>
          <Chart label={`Timeline of trials. ${describe(null)}`} height={height} x={x} y={y} points={points} describe={describe} find={find} onPick={(at) => go(href({ page: "trial", id: campaign.id, number: bars[at]!.trial.number }))}>
            {draw}
          </Chart>
          <OutcomeLegend trials={[...new Set(bars.map(({ trial }) => trial))]} bars />
          {left > 0 && <p class="muted small">{by === "node" ? `${count(left)} more nodes are not drawn; by slot every trial is.` : `${count(left)} more slots are not drawn.`}</p>}
        </>
      )}
    </Card>
  );
}
