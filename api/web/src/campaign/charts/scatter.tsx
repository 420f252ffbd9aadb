/** Any number of the trials against any other, or against a dimension of their plans; at first speed against memory: what
 * more memory buys, and where the device ends. */
import type { TrialBrief } from "../../api/types";
import { bytes, count, number, UNKNOWN } from "../../format";
import { go, href } from "../../router";
import { Card } from "../../ui/basics";
import { Menu } from "../../ui/menu";
import { setConditions, wordOf } from "../data/conditions";
import { frontOf } from "../data/front";
import { type Condition, rangeOf } from "../data/filters";
import type { Goal } from "../data/goal";
import { isBytes, quantitiesOf, type Quantity, quantityWords } from "../data/quantities";
import { type Dimension, INACTIVE, levelsOf, MEASURED, outcomeOf, type Value, valueOf } from "../data/values";
import { type Axis, byteNumbers, doublings, levels, numbers, whole } from "./axes";
import { Chart, type Frame, Label, onRail, type Stretch } from "./chart";
import { useChoice, useLog } from "./choices";
import { marks, type Point, steps } from "./marks";
import { Dots, type RunsProps } from "./outcomes";
import { jitter } from "./parallel";
import { toPixel } from "./scales";

/** Of the room of a level: how far its trials lie apart. */
const JITTER = 0.4;
/** A device with so many times what was used is not drawn to scale: the trials would lie in one heap. */
const FAR = 4;

interface ScatterProps extends RunsProps {
  /** Dimensions in which the trials differ. */
  dimensions: readonly Dimension[];
}

export function Scatter({ campaign, goal, dimensions, trials, shown }: ScatterProps) {
  const { simulated } = campaign;
  const quantities = quantitiesOf(goal, dimensions);
  const named = (name: string) => quantities.find((one) => one.name === name)!;
  // Not every job says its memory.
  const first = trials.some((trial) => trial.peak_memory_bytes !== null) ? "memory" : "number";
  const [across, acrossChoice] = useChoice("below", "Across axis", quantities, named(first));
  const [up, upChoice] = useChoice("left", "Up axis", quantities, named("objective"));
  const [logX, logXButton] = useLog("x", "across log");
  const [logY, logYButton] = useLog("y", "up log");
  const limit = across.name.endsWith("memory") ? (campaign.spec.cluster.device?.memory_bytes ?? null) : null;
  const x = sideOf(across, trials, goal, logX, limit, simulated);
  const y = sideOf(up, trials, goal, logY, null, simulated);
  const dots = trials
    .flatMap((trial) => {
      // Without a value along y it lies on the rail.
      const at = x.of(trial);
      return at === null ? [] : [{ trial, x: at, y: y.of(trial) }];
    })
    .sort((a, b) => a.x - b.x);
  const visible = dots.filter(({ trial }) => shown.has(trial));
  const isFront = across.name === "memory" && up.name === "objective";
  const front = isFront ? frontOf(visible.map(({ trial }) => trial), goal) : [];
  const says = ({ name, label }: Quantity, trial: TrialBrief) => {
    const value = valueOf(trial, name);
    return `${label} ${typeof value === "number" ? quantityWords(name, value, goal) : String(value ?? UNKNOWN)}`;
  };
  const describe = (index: number | null) => {
    if (index === null) return `${count(visible.filter((dot) => dot.y !== null).length)} of ${count(shown.size)} trials have both values. Drag to filter, click to open.`;
    const { trial } = visible[index]!;
    return `#${trial.number} ${trial.plan_key}, ${wordOf(outcomeOf(trial))}: ${says(up, trial)}, ${says(across, trial)}`;
  };
  const draw = (frame: Frame) => {
    const placed = (dot: { x: number; y: number | null }): Point => [toPixel(frame.x, dot.x), dot.y === null ? onRail(frame) : toPixel(frame.y, dot.y)];
    const best = front.map((one) => placed({ x: one.peak_memory_bytes, y: one.objective.value }));
    const device = limit === null ? null : `the device${limit > frame.x.high ? ", far to the right" : ""}: ${bytes(limit)}`;
    return (
      <>
        <path class="dots off" d={marks(dots.filter(({ trial, y }) => !shown.has(trial) && y !== null).map(placed), "disc")} />
        <Dots all={visible} at={placed} />
        <path class="front" d={steps(best)} />
        <path class="front-dots" d={marks(best, "disc")} />
        {limit !== null && limit <= frame.x.high && <path class="limit" d={`M${toPixel(frame.x, limit)} ${frame.top}V${frame.bottom}`} />}
        {device && <Label x={Math.min(frame.right, toPixel(frame.x, limit!))} y={frame.bottom - 5} frame={frame}>{device}</Label>}
      </>
    );
  };
  return (
    <Card
      title={isFront ? "Speed against memory" : `${up.label} against ${across.label}`}
      testid="scatter"
      aside={
        <Menu label="Axes" stays>
          <div class="row">Up {upChoice}{!up.dimension && logYButton}</div>
          <div class="row">Across {acrossChoice}{!across.dimension && logXButton}</div>
        </Menu>
      }
    >
      <Chart
        label={`${up.label} against ${across.label}${simulated ? ", simulated" : ""}. ${describe(null)}${isFront ? ` On the front: ${front.slice(-3).map((one) => `trial ${one.number}`).join(", ") || "none"}.` : ""}`}
        height={240}
        x={x.axis}
        y={y.axis}
        points={visible.map((dot) => [dot.x, dot.y])}
        describe={describe}
        reach={12}
        onSelect={(one, other) => setConditions({ [across.name]: x.keep(one), [up.name]: y.keep(other) })}
        onPick={(at) => go(href({ page: "trial", id: campaign.id, number: visible[at]!.trial.number }))}
      >
        {draw}
      </Chart>
    </Card>
  );
}

/** One axis: where a trial lies on it, and what a stretch of it keeps; of levels none where it is between two. */
interface Side {
  readonly axis: Axis;
  readonly of: (trial: TrialBrief) => number | null;
  readonly keep: (ends: Stretch) => Condition | null;
}

function sideOf({ name, label, dimension }: Quantity, trials: readonly TrialBrief[], goal: Goal, log: boolean, limit: number | null, simulated: boolean): Side {
  if (dimension) return sideOfLevels(dimension, label, levelsOf(trials, dimension));
  const of = (trial: TrialBrief) => valueOf(trial, name) as number | null;
  const values = trials.map(of).filter((value) => value !== null);
  const made = name === "objective" || MEASURED.some((one) => one.name === name);
  const title = simulated && made ? `${label}, simulated` : label;
  if (name === "number") return { axis: whole(values, label), of, keep: (ends) => rangeOf(ends, true) };
  if (!isBytes(name)) return { axis: numbers(values, { title, format: (value, digits) => quantityWords(name, value, goal, digits), log, room: 0.04 }), of, keep: rangeOf };
  const ends = limit !== null && limit < Math.max(...values) * FAR ? [limit] : [];
  return { axis: byteNumbers([...values, ...ends], { title, log, room: 0.03, fromZero: name !== "headroom" }), of, keep: rangeOf };
}

/** The trials of one level lie apart, by a jitter that is always the same for a trial. */
function sideOfLevels({ name }: Dimension, label: string, found: readonly Value[]): Side {
  const doubled = found.every((level) => typeof level === "number" && level > 0 && Number.isInteger(Math.log2(level)));
  const place = (level: Value) => (doubled ? (level as number) : found.indexOf(level));
  const words = found.map((level) => (typeof level === "number" ? number(level, 6) : level === INACTIVE ? "inactive" : level));
  return {
    axis: doubled ? doublings(found as number[], label) : levels(words, label),
    of: (trial) => {
      const apart = jitter(trial.number, name) * JITTER;
      const at = place(valueOf(trial, name)!);
      return doubled ? at * 2 ** apart : at + apart;
    },
    keep: ([low, high]) => {
      const kept = found.filter((level) => low <= place(level) && place(level) <= high);
      if (kept.length === 0) return null;
      return kept.every((level) => typeof level === "number") ? rangeOf([Math.min(...kept), Math.max(...kept)]) : { kind: "words", words: kept.map(String) };
    },
  };
}
