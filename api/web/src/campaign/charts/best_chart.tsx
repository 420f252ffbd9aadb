/** What the campaign had found after each trial, or after each device-hour: fastest once so far, with what is recommended
 * and what was confirmed as points, and the baseline over all of them. */
import type { CampaignView } from "../../api/types";
import { bareObjective, number } from "../../format";
import { go, href } from "../../router";
import { Card } from "../../ui/basics";
import { setConditions } from "../data/conditions";
import { rangeOf } from "../data/filters";
import { bestSoFar, type Reached } from "../data/progress";
import { numbers } from "./axes";
import { Chart, type Frame, Label, onRail } from "./chart";
import { useHours, useLog } from "./choices";
import { box, marks, type Point, steps } from "./marks";
import { cameWords, Dots, OutcomeLegend, type RunsProps } from "./outcomes";
import { toPixel } from "./scales";

export function BestChart({ campaign, goal, trials, shown }: RunsProps) {
  const [hours, across, hoursSwitch] = useHours();
  const [log, logButton] = useLog("best", "log scale");
  const reached = bestSoFar(trials, goal, hours);
  const baseline = campaign.summary.baseline?.objective.value ?? null;
  const winners = namedOf(campaign);
  const measured = campaign.simulated ? "simulated" : "measured";
  const words = (value: number) => `${goal.label} ${bareObjective(value, goal.unit)}`;
  const describe = (index: number | null) => {
    const one = index === null ? reached.at(-1) : reached[index];
    if (!one?.best) return `Nothing was ${measured} yet.`;
    const { trial } = one;
    const own = index === null ? "" : ` · trial ${trial.number}: ${cameWords(trial, goal)}`;
    return `Fastest once until ${hours ? `${number(one.x)} device-hours` : `trial ${trial.number}`}: ${words(one.best.value)}${own}`;
  };
  const visible = reached.filter(({ trial }) => shown.has(trial));
  const values = [...reached.flatMap(({ trial, best }) => [trial.objective?.value, best?.low, best?.high]), baseline, ...winners.map(({ value }) => value)].filter((value) => value != null);
  const xs = reached.map(({ x }) => x);
  const said = [describe(null), ...winners.map(({ words: name, value, trial }) => `${name}: trial ${trial}, ${words(value)}`), ...(baseline === null ? [] : [`The baseline: ${words(baseline)}`])];
  const draw = (frame: Frame) => {
    const at = (x: number, value: number): Point => [toPixel(frame.x, x), toPixel(frame.y, value)];
    const placed = ({ trial, x }: Reached): Point => (trial.objective ? at(x, trial.objective.value) : [toPixel(frame.x, x), onRail(frame)]);
    // Where the best changes: it is level between.
    const changes = reached.filter(({ best }, index) => best && best !== reached[index - 1]?.best);
    const band = changes.map(({ x, best }, index) => {
      const [[left, top], [right, bottom]] = [at(x, best!.high), at(changes[index + 1]?.x ?? xs.at(-1)!, best!.low)];
      return best!.low < best!.high ? box(left, top, right - left, bottom - top) : "";
    });
    const level = baseline === null ? 0 : toPixel(frame.y, baseline);
    const line = `M${frame.left} ${level}H${frame.right}`;
    return (
      <>
        <path class="dots off" d={marks(reached.filter(({ trial }) => trial.objective && !shown.has(trial)).map(placed), "disc")} />
        <g data-testid="best-dots">
          <Dots all={visible} at={placed} />
        </g>
        <path class="band" d={band.join("")} />
        <path class="best-line" d={steps(changes.map(({ x, best }) => at(x, best!.value)), frame.right)} />
        {baseline !== null && (
          <g data-testid="baseline-line">
            <path class="halo" d={line} />
            <path class="baseline" d={line} />
            <text class="mark-label" x={frame.right} y={level - 5} text-anchor="end">baseline {bareObjective(baseline, goal.unit)}</text>
          </g>
        )}
        {winners.map(({ words, trial, value }) => {
          const found = reached.find((one) => one.trial.number === trial);
          if (!found) return null;
          const [x, y] = at(found.x, value);
          return (
            <g key={words} data-testid={`named-${trial}`}>
              <path class="named" d={marks([[x, y]], words.startsWith("recommended") ? "diamond" : "triangle")} />
              <Label x={x} y={y - 9} frame={frame}>{words}</Label>
            </g>
          );
        })}
      </>
    );
  };
  return (
    <Card title="Best so far" testid="best-so-far" aside={<>{logButton}{hoursSwitch}</>}>
      <Chart
        label={`Best so far, ${measured}. ${said.join(". ")}`}
        height={264}
        x={across(xs)}
        y={numbers(values, { format: (value, digits) => bareObjective(value, goal.unit, digits), log, room: 0.04, title: goal.label + (campaign.simulated ? ", simulated" : "") })}
        points={reached.map(({ x, trial }) => [x, trial.objective?.value ?? null])}
        describe={describe}
        onSelect={hours ? undefined : (ends) => setConditions({ number: rangeOf(ends, true) })}
        onPick={(index) => go(href({ page: "trial", id: campaign.id, number: reached[index]!.trial.number }))}
      >
        {draw}
      </Chart>
      <OutcomeLegend all={visible} made={measured}>
        <li><span class="mark-key best" /> fastest once so far{reached.some(({ best }) => best && best.low < best.high) && ", with the 95 % interval of its steps"}</li>
      </OutcomeLegend>
    </Card>
  );
}

/** What has a name beside the fastest once, which the line ends at; one for a trial that has both. */
function namedOf({ summary: { recommended, fastest_confirmed } }: CampaignView) {
  const both = recommended?.trial === fastest_confirmed?.trial;
  const named = both ? { "recommended, fastest confirmed": recommended } : { recommended, "fastest confirmed": fastest_confirmed };
  return Object.entries(named).flatMap(([words, found]) => (found ? [{ words, trial: found.trial, value: found.objective.value }] : []));
}
