/** Any number of the trials against any other, or against a dimension of their plans; at first speed against memory: what
 * more memory buys, and where the device ends. */
import { useCallback, useMemo } from "preact/hooks";
import type { CampaignView, TrialBrief } from "../../api/types";
import { useFilter } from "../../filters";
import { bytes, count, number } from "../../format";
import { go, href } from "../../router";
import { Card } from "../../ui/basics";
import { setConditions, wordOf } from "../data/conditions";
import { frontOf, measured } from "../data/front";
import type { Condition } from "../data/filters";
import type { Goal } from "../data/goal";
import { isBytes, quantitiesOf, type Quantity, quantityWords } from "../data/quantities";
import { type Dimension, INACTIVE, levelsOf, outcomeOf, type Value, valueOf } from "../data/values";
import { type Axis, byteNumbers, doublings, levels, numbers, whole } from "./axes";
import { LogButton, useLog } from "./best_chart";
import { Chart, type Frame, Label, type Stretch } from "./chart";
import { marks, type Point, shapeOf, steps } from "./marks";
import { OutcomeLegend, outcomesOf } from "./outcomes";
import { jitter } from "./parallel";
import { toPixel } from "./scales";

const HEIGHT = 240;
const REACH = 12;
/** Of marks in one level of a dimension: how far they lie apart. */
const JITTER_PX = 14;
const RAIL_PX = 16;
const MANY = 500;
/** A device with so many times what was used is not drawn to scale: the trials would lie in one heap. */
const FAR = 4;
/** What a device measures, where one does. */
const MADE = new Set(["objective", "memory", "step_time", "tokens", "headroom"]);

interface ScatterProps {
  campaign: CampaignView;
  goal: Goal;
  /** Dimensions in which the trials differ. */
  dimensions: readonly Dimension[];
  trials: readonly TrialBrief[];
  shown: ReadonlySet<TrialBrief>;
  simulated: boolean;
}

/** y: null where the trial has no such value. */
interface Dot {
  readonly trial: TrialBrief;
  readonly x: number;
  readonly y: number | null;
}

export function Scatter({ campaign, goal, dimensions, trials, shown, simulated }: ScatterProps) {
  const quantities = useMemo(() => quantitiesOf(goal, dimensions), [goal, dimensions]);
  const [below, setBelow] = useFilter("below");
  const [left, setLeft] = useFilter("left");
  const chosen = (name: string, first: string) => quantities.find((one) => one.name === name) ?? quantities.find((one) => one.name === first)!;
  const [across, up] = [chosen(below, "memory"), chosen(left, "objective")];
  const [logX, switchX] = useLog("x");
  const [logY, switchY] = useLog("y");
  const limit = across.name === "memory" || across.name === "predicted_memory" ? (campaign.spec.cluster.device?.memory_bytes ?? null) : null;
  const [x, y] = useMemo(() => [sideOf(across, trials, goal, logX, limit, simulated), sideOf(up, trials, goal, logY, null, simulated)], [across, up, trials, goal, logX, logY, limit, simulated]);
  const dots = useMemo(() => {
    const found = trials.flatMap((trial): Dot[] => {
      const [atX, atY] = [x.of(trial), y.of(trial)];
      return atX === null ? [] : [{ trial, x: atX, y: atY }];
    });
    return found.sort((a, b) => a.x - b.x || a.trial.number - b.trial.number);
  }, [trials, x, y]);
  const visible = useMemo(() => dots.filter(({ trial }) => shown.has(trial)), [dots, shown]);
  const none = visible.filter((dot) => dot.y === null).length;
  const isFront = across.name === "memory" && up.name === "objective";
  const front = useMemo(() => (isFront ? frontOf(measured(visible.map(({ trial }) => trial)), goal) : []), [visible, goal, isFront]);
  const points = useMemo(() => visible.map((dot) => [dot.x, dot.y] as const), [visible]);
  const placed = (frame: Frame, dot: Dot): Point => [
    toPixel(frame.x, dot.x) + (across.dimension ? jitter(dot.trial.number, across.name) * JITTER_PX : 0),
    dot.y === null ? frame.bottom + RAIL_PX - 3 : toPixel(frame.y, dot.y) + (up.dimension ? jitter(dot.trial.number, up.name) * JITTER_PX : 0),
  ];
  const says = (of: Quantity, trial: TrialBrief) => {
    const value = valueOf(trial, of.name);
    return `${of.name === "objective" ? "" : `${of.label} `}${typeof value === "number" ? quantityWords(of.name, value, goal) : value === null ? "–" : String(value)}`;
  };
  const describe = useCallback(
    (index: number | null) => {
      if (index !== null) {
        const { trial } = visible[index]!;
        return `#${trial.number} ${trial.plan_key}, ${wordOf(outcomeOf(trial))}: ${says(up, trial)}, ${says(across, trial)}`;
      }
      const without = shown.size - visible.length;
      return `${count(visible.length - none)} of ${count(shown.size)} trials have both values.${without + none > 0 ? "" : " Drag to filter, click to open."}`;
    },
    [visible, across, up, goal, none, shown],
  );
  const find = useCallback(
    (atX: number, atY: number, frame: Frame) => {
      let found: number | null = null;
      let least = REACH * REACH;
      visible.forEach((dot, index) => {
        const [x, y] = placed(frame, dot);
        const away = (x - atX) ** 2 + (y - atY) ** 2;
        if (away < least) [found, least] = [index, away];
      });
      return found;
    },
    [visible, across, up],
  );
  const draw = useCallback(
    (frame: Frame) => (
      <>
        <path class="dots off" d={marks(dots.filter(({ trial, y }) => !shown.has(trial) && y !== null).map((dot) => placed(frame, dot)), "disc")} />
        {outcomesOf(visible, ({ trial }) => trial).map(([outcome, tone, some]) => (
          <path key={outcome} class={`dots dots-${tone} ${visible.length > MANY ? "many" : ""}`} data-testid={`dots-${outcome}`} data-marks={some.length} d={marks(some.map((dot) => placed(frame, dot)), shapeOf(outcome))} />
        ))}
        {none > 0 && <text class="rail-label" x={4} y={frame.bottom + RAIL_PX}>none</text>}
        {isFront && (
          <>
            <path class="front" d={steps(front.map((one) => [toPixel(frame.x, one.peak_memory_bytes), toPixel(frame.y, one.objective.value)]))} />
            <path class="front-dots" d={marks(front.map((one) => [toPixel(frame.x, one.peak_memory_bytes), toPixel(frame.y, one.objective.value)]), "disc")} />
          </>
        )}
        {limit !== null && limit <= frame.x.high && (
          <>
            <path class="limit" d={`M${toPixel(frame.x, limit)} ${frame.top}V${frame.bottom}`} />
            <Label x={toPixel(frame.x, limit)} y={frame.bottom - 5} frame={frame}>{`the device: ${bytes(limit)}`}</Label>
          </>
        )}
        {limit !== null && limit > frame.x.high && <text class="mark-label" x={frame.right} y={frame.bottom - 5} text-anchor="end">the device, far to the right: {bytes(limit)}</text>}
      </>
    ),
    [dots, visible, front, isFront, limit, none, across, up],
  );
  const select = (one: Stretch, other: Stretch) => {
    const pairs = [[across, x, one], [up, y, other]] as const;
    setConditions(Object.fromEntries(pairs.map(([quantity, side, ends]) => [quantity.name, side.keep(ends)])));
  };
  return (
    <Card
      title={isFront ? "Speed against memory" : `${up.label} against ${across.label}`}
      testid="scatter"
      aside={
        <details class="menu">
          <summary class="button">Axes</summary>
          <div class="menu-inside pairs">
            <AxisChoice label="Up" value={up} all={quantities} onChoose={setLeft} log={logY} onLog={switchY} />
            <AxisChoice label="Across" value={across} all={quantities} onChoose={setBelow} log={logX} onLog={switchX} />
          </div>
        </details>
      }
    >
      <Chart
        label={`${up.label} against ${across.label}${simulated ? ", simulated" : ""}. ${describe(null)}${isFront ? ` On the front: ${front.slice(-3).map((one) => `trial ${one.number}`).join(", ") || "none"}.` : ""}`}
        height={HEIGHT}
        x={x.axis}
        y={y.axis}
        points={points}
        describe={describe}
        find={find}
        onSelect={select}
        both
        below={none > 0 ? RAIL_PX : 0}
        onPick={(at) => go(href({ page: "trial", id: campaign.id, number: visible[at]!.trial.number }))}
      >
        {draw}
      </Chart>
      <OutcomeLegend trials={visible.map(({ trial }) => trial)} />
    </Card>
  );
}

interface AxisChoiceProps {
  label: string;
  value: Quantity;
  all: readonly Quantity[];
  onChoose: (name: string) => void;
  log: boolean;
  onLog: () => void;
}

function AxisChoice({ label, value, all, onChoose, log, onLog }: AxisChoiceProps) {
  return (
    <div class="row">
      <label>
        {label}{" "}
        <select aria-label={`${label} axis`} value={value.name} onChange={(event) => onChoose(event.currentTarget.value)}>
          {all.map(({ name, label }) => (
            <option key={name} value={name}>{label}</option>
          ))}
        </select>
      </label>
      {!value.dimension && <LogButton pressed={log} onClick={onLog}>{`${label.toLowerCase()} log`}</LogButton>}
    </div>
  );
}

/** Null of a stretch between two levels. */
function range([low, high]: Stretch): Condition | null {
  return low <= high ? { kind: "range", low, high } : null;
}

const within = ([low, high]: Stretch) => range([Math.ceil(low), Math.floor(high)]);

/** One axis: where a trial lies on it, and what a stretch of it keeps. */
interface Side {
  readonly axis: Axis;
  readonly of: (trial: TrialBrief) => number | null;
  readonly keep: (ends: Stretch) => Condition | null;
}

function sideOf({ name, label, dimension }: Quantity, trials: readonly TrialBrief[], goal: Goal, log: boolean, limit: number | null, simulated: boolean): Side {
  const of = (trial: TrialBrief) => valueOf(trial, name) as number | null;
  if (dimension) return sideOfLevels(dimension, label, levelsOf(trials, dimension));
  const values = trials.map(of).filter((value) => value !== null);
  const title = simulated && MADE.has(name) ? `${label}, simulated` : label;
  if (name === "number") return { axis: whole(values, label), of, keep: within };
  if (isBytes(name)) {
    const most = Math.max(...values, 0);
    const ends = limit !== null && limit < most * FAR ? [limit] : [];
    return { axis: byteNumbers([...values, ...ends], { title, log, room: 0.03, fromZero: name !== "headroom" }), of, keep: range };
  }
  return { axis: numbers(values, { title, format: (value, digits) => quantityWords(name, value, goal, digits), log, room: 0.04 }), of, keep: range };
}

function sideOfLevels({ name }: Dimension, label: string, found: readonly Value[]): Side {
  const sizes = found.filter((level) => typeof level === "number");
  if (sizes.length === found.length && sizes.every((size) => size > 0 && Number.isInteger(Math.log2(size)))) {
    return { axis: doublings(sizes, label), of: (trial) => valueOf(trial, name) as number | null, keep: within };
  }
  const at = new Map(found.map((level, index) => [level, index]));
  return {
    axis: levels(found.map((level) => (typeof level === "number" ? number(level, 6) : level === INACTIVE ? "inactive" : level)), label),
    of: (trial) => at.get(valueOf(trial, name) ?? "") ?? null,
    keep: ([low, high]) => {
      const kept = found.filter((_, index) => low <= index && index <= high);
      if (kept.length === 0) return null;
      return kept.every((level) => typeof level === "number") ? range([Math.min(...kept), Math.max(...kept)]) : { kind: "words", words: kept.map(String) };
    },
  };
}
