/** What the campaign had found after each trial, or after each device-hour: fastest once so far, with what is recommended
 * and what was confirmed as points, and the baseline over all of them. */
import { useCallback, useMemo, useState } from "preact/hooks";
import type { CampaignView, TrialBrief } from "../../api/types";
import { setFilters, useFilters } from "../../filters";
import { bareObjective, number, objective, short } from "../../format";
import { go, href } from "../../router";
import { Card, Switch } from "../../ui/basics";
import { setConditions } from "../data/conditions";
import type { Goal } from "../data/goal";
import { type Against, bestSoFar } from "../data/progress";
import { numbers, whole } from "./axes";
import { Chart, type Frame, Label } from "./chart";
import { marks, type Point, type Shape, steps } from "./marks";
import { toPixel } from "./scales";

const AGAINST: readonly (readonly [Against, string])[] = [
  ["trials", "by trial"],
  ["device_hours", "by device-hour"],
];
/** So many dots cover each other: they are small and let through what lies under them. */
const MANY = 500;

interface BestChartProps {
  campaign: CampaignView;
  goal: Goal;
  trials: readonly TrialBrief[];
  shown: ReadonlySet<TrialBrief>;
  /** Of a campaign whose numbers no device measured. */
  simulated: boolean;
}

export function BestChart({ campaign, goal, trials, shown, simulated }: BestChartProps) {
  const [against, setAgainst] = useState<Against>("trials");
  const [log, switchLog] = useLog("best");
  const columns = useMemo(() => bestSoFar(trials, goal, against), [trials, goal, against]);
  const baseline = campaign.summary.baseline?.objective.value ?? null;
  const named = JSON.stringify(namedOf(campaign));
  const winners = useMemo(() => JSON.parse(named) as Winner[], [named]);
  const points = useMemo(() => columns.x.map((x, at) => [x, columns.value[at] ?? null] as const), [columns]);
  const [x, y] = useMemo(() => {
    const values = [...columns.value, ...columns.best, baseline, ...winners.map(({ value }) => value)].filter((value) => value !== null);
    return [
      against === "trials" ? whole(columns.x, "trial") : numbers([0, ...columns.x], { title: "device-hours", format: short }),
      numbers(values, { format: (value, digits) => bareObjective(value, goal.unit, digits), log, room: 0.04, title: goal.label + (simulated ? ", simulated" : "") }),
    ];
  }, [columns, winners, baseline, against, goal, log, simulated]);
  const describe = useCallback(
    (index: number | null) => {
      const at = index ?? columns.x.length - 1;
      const best = columns.best[at];
      if (best === undefined || best === null) return `Nothing was ${simulated ? "simulated" : "measured"} yet.`;
      const until = against === "trials" ? `trial ${columns.numbers[at]}` : `${number(columns.x[at])} device-hours`;
      const own = index === null || columns.value[at] === null ? "" : ` · trial ${columns.numbers[at]}: ${objective(columns.value[at], goal.unit)}`;
      return `Fastest once until ${until}: ${objective(best, goal.unit)}${own}`;
    },
    [columns, against, goal.unit, simulated],
  );
  const draw = useCallback(
    (frame: Frame) => {
      const visible = new Set([...shown].map((trial) => trial.number));
      return <Marks {...{ frame, columns, visible, baseline, winners, goal }} />;
    },
    [columns, shown, baseline, winners, goal],
  );
  const told = winners.map(({ words, value, trial }) => ` ${words}: trial ${trial}, ${objective(value, goal.unit)}.`).join("");
  const intervals = columns.low.some((low, at) => low !== null && low < columns.high[at]!);
  return (
    <Card
      title="Best so far"
      testid="best-so-far"
      aside={
        <>
          <LogButton pressed={log} onClick={switchLog} />
          <Switch label="Horizontal axis" options={AGAINST} value={against} onChange={setAgainst} testid="against" />
        </>
      }
    >
      <Chart
        label={`Best so far, ${simulated ? "simulated" : "measured"}. ${describe(null)}.${told}${baseline === null ? "" : ` The baseline: ${objective(baseline, goal.unit)}.`}`}
        height={232}
        x={x}
        y={y}
        points={points}
        describe={describe}
        onSelect={against === "trials" ? ([low, high]) => setConditions({ number: { kind: "range", low: Math.ceil(low), high: Math.floor(high) } }) : undefined}
        onPick={(at) => go(href({ page: "trial", id: campaign.id, number: columns.numbers[at]! }))}
      >
        {draw}
      </Chart>
      <ul class="chart-legend">
        <li><span class="mark-key best" /> fastest once so far{intervals && ", with the 95 % interval of its steps"}</li>
        <li><span class="mark-key point" /> trial, {simulated ? "simulated" : "measured"}</li>
        {baseline !== null && <li><span class="mark-key dashed" /> baseline</li>}
      </ul>
    </Card>
  );
}

/** A switch of the axes to a log scale, kept in the address; of: which. */
export function useLog(of: string): [boolean, () => void] {
  const all = useFilters().getAll("log");
  const on = all.includes(of);
  return [on, () => setFilters({ log: on ? all.filter((one) => one !== of) : [...all, of] })];
}

export function LogButton({ pressed, onClick, children = "log scale" }: { pressed: boolean; onClick: () => void; children?: string }) {
  return <button type="button" class="chip" aria-pressed={pressed} onClick={onClick}>{children}</button>;
}

interface Winner {
  readonly words: string;
  readonly trial: number;
  readonly value: number;
}

/** What has a name, once where one trial has more than one. */
function namedOf({ summary: { recommended, fastest_confirmed } }: CampaignView): Winner[] {
  const found: Winner[] = [];
  for (const [words, one] of [["recommended", recommended], ["fastest confirmed", fastest_confirmed]] as const) {
    if (!one) continue;
    const same = found.findIndex(({ trial }) => trial === one.trial);
    if (same < 0) found.push({ words, trial: one.trial, value: one.objective.value });
    else found[same] = { ...found[same]!, words: `${found[same]!.words}, ${words}` };
  }
  return found;
}

interface MarksProps {
  frame: Frame;
  columns: ReturnType<typeof bestSoFar>;
  visible: ReadonlySet<number>;
  baseline: number | null;
  winners: readonly Winner[];
  goal: Goal;
}

function Marks({ frame, columns, visible, baseline, winners, goal }: MarksProps) {
  const at = (index: number, value: number): Point => [toPixel(frame.x, columns.x[index]!), toPixel(frame.y, value)];
  const measured = columns.value.flatMap((value, index) => (value === null ? [] : [[visible.has(columns.numbers[index]!), at(index, value)] as const]));
  const of = (shown: boolean) => measured.flatMap(([is, point]) => (is === shown ? [point] : []));
  // Where it changes: the steps between are level.
  const changes = columns.best.flatMap((best, index) => (best !== null && best !== columns.best[index - 1] ? [index] : []));
  const edge = (values: readonly (number | null)[]) => steps(changes.map((index) => at(index, values[index]!)), frame.right);
  const band = changes.map((index, order) => {
    const [left, right] = [at(index, 0)[0], order + 1 < changes.length ? at(changes[order + 1]!, 0)[0] : frame.right];
    const [top, bottom] = [columns.high[index]!, columns.low[index]!].map((value) => toPixel(frame.y, value));
    return `M${left.toFixed(1)} ${top!.toFixed(1)}H${right.toFixed(1)}V${bottom!.toFixed(1)}H${left.toFixed(1)}z`;
  });
  const level = baseline === null ? 0 : toPixel(frame.y, baseline);
  const many = measured.length > MANY;
  return (
    <>
      <path class="dots off" d={marks(of(false), "disc")} />
      <path class={many ? "dots many" : "dots"} data-testid="best-dots" data-marks={of(true).length} d={marks(of(true), "disc")} />
      <path class="band" d={band.join("")} />
      <path class="best-line" d={edge(columns.best)} />
      {baseline !== null && (
        <g data-testid="baseline-line">
          <path class="halo" d={`M${frame.left} ${level}H${frame.right}`} />
          <path class="baseline" d={`M${frame.left} ${level}H${frame.right}`} />
          <text class="mark-label" x={frame.left + 4} y={level - 5}>baseline {bareObjective(baseline, goal.unit)}</text>
        </g>
      )}
      {winners.map(({ words, trial, value }) => {
        const index = columns.numbers.indexOf(trial);
        if (index < 0) return null;
        const [x, y] = at(index, value);
        const shape: Shape = words.startsWith("recommended") ? "diamond" : "triangle";
        return (
          <g key={words} data-testid={`named-${trial}`}>
            <path class="named" d={marks([[x, y]], shape)} />
            <Label x={x} y={y - 6} frame={frame}>{words}</Label>
          </g>
        );
      })}
    </>
  );
}
