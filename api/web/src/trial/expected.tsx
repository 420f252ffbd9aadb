/** What the search expected of the plan when it chose it, beside what came. */
import type { TrialView } from "../api/types";
import { bytes, gain, interval, number, probability, stepTime } from "../format";
import { Card } from "../ui/basics";
import { TableFrame } from "../ui/table";
import { trialWord } from "../words";

export function Expected({ trial }: { trial: TrialView }) {
  const { expectation, measurement, partial } = trial;
  const peaks = (measurement ?? partial)?.peak_memory_bytes ?? [];
  const peak = peaks.length > 0 ? Math.max(...peaks) : null;
  return (
    <Card title="Expected and measured" testid="expected">
      {expectation === null ? (
        <p class="muted">The search expected nothing of this trial.</p>
      ) : (
        <TableFrame label="Expected and measured" dense>
          <thead>
            <tr>
              <th scope="col"> </th>
              <th scope="col" class="num">expected</th>
              <th scope="col" class="num">measured</th>
              <th scope="col">which is</th>
            </tr>
          </thead>
          <tbody>
            <tr>
              <th scope="row">step time</th>
              <td class="num">
                {stepTime(expectation.step_time_s)}
                <div class="muted">95 %: {interval(expectation.step_time_low_s, expectation.step_time_high_s, stepTime)}</div>
              </td>
              <td class="num">{stepTime(measurement?.step_time_s)}</td>
              <td>{measurement ? stepWords(measurement.step_time_s, expectation) : "–"}</td>
            </tr>
            <tr>
              <th scope="row">peak memory</th>
              <td class="num">{bytes(expectation.peak_bytes)}</td>
              <td class="num">{bytes(peak)}</td>
              <td>{peak === null ? "–" : `${ratio(peak, expectation.peak_bytes)} of the expected`}</td>
            </tr>
            <tr>
              <th scope="row">fits</th>
              <td class="num">{probability(expectation.p_fits)}</td>
              <td class="num">{trialWord(trial).word}</td>
              <td>{fitWords(trial, expectation.p_fits)}</td>
            </tr>
            <tr>
              <th scope="row">gain over the best before</th>
              <td class="num">{gain(expectation.gain)}</td>
              <td class="num"> </td>
              <td class="muted">with the chance of none counted as 0</td>
            </tr>
          </tbody>
        </TableFrame>
      )}
    </Card>
  );
}

function stepWords(measured_s: number, { step_time_s, step_time_low_s, step_time_high_s }: NonNullable<TrialView["expectation"]>): string {
  const within = step_time_low_s <= measured_s && measured_s <= step_time_high_s;
  const where = within ? "within the interval" : measured_s > step_time_high_s ? "slower than the interval" : "faster than the interval";
  return `${ratio(measured_s, step_time_s)} of the expected, ${where}`;
}

function ratio(one: number, other: number): string {
  return `${number((100 * one) / other)} %`;
}

function fitWords({ verdict }: TrialView, p_fits: number): string {
  if (verdict === "ok" || verdict === "pruned") return p_fits >= 0.5 ? "as expected" : "better than expected";
  if (verdict === "oom") return p_fits < 0.5 ? "as expected" : "not as expected";
  return "not known";
}
