/** When each trial ran, and on which node or in which slot of the campaign. */
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
const BAR_PX = 14;
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
  const { names, bars, left } = timelineOf(trials, by, Date.now(), MOST_LANES);
  const ran = [...new Set(bars.map(({ trial }) => trial))];
  const describe = (index: number | null) => {
    if (index === null) return `${count(ran.length)} ${ran.length === 1 ? "trial" : "trials"} in ${count(names.length)} ${names.length === 1 ? "lane" : "lanes"}. Click to open one.`;
    const { trial, from, to, lane } = bars[index]!;
    return `#${trial.number} ${trial.plan_key}, ${names[lane]}: ${wordOf(outcomeOf(trial))}${trial.objective ? ` ${objective(trial.objective.value, goal.unit)}` : ""}, ${duration(to - from)} from ${duration(from)}`;
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
        <Hatches />
        <path class="bars-off" d={path(bars.filter(({ trial }) => !shown.has(trial)))} />
        {outcomesOf(bars.filter(({ trial }) => shown.has(trial)), ({ trial }) => trial).map(([outcome, tone, some]) => (
          <path key={outcome} class={`bar-${tone}`} data-testid={`ran-${outcome}`} data-marks={some.length} d={path(some)} />
        ))}
      </>
    );
  };
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
          <OutcomeLegend trials={ran} bars />
          {left > 0 && <p class="muted small">{by === "node" ? `${count(left)} more nodes are not drawn; by slot every trial is.` : `${count(left)} more slots are not drawn.`}</p>}
        </>
      )}
    </Card>
  );
}

/** The fills of what has failed, for those who do not tell its colour from another. */
function Hatches() {
  return (
    <defs>
      {["oom", "failed"].map((tone) => (
        <pattern key={tone} id={`hatch-${tone}`} width="5" height="5" patternUnits="userSpaceOnUse" patternTransform={`rotate(${tone === "oom" ? 45 : -45})`}>
          <path class="hatch-ground" d="M0 0h5v5h-5z" />
          <path class="hatch-line" d="M0 0h2.5v5h-2.5z" />
        </pattern>
      ))}
    </defs>
  );
}
