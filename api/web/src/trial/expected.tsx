/** What the search expected of the plan when it chose it, beside what came. */
import type { TrialView } from "../api/types";
import { bytes, interval, number, probability, stepTime } from "../format";
import { Card } from "../ui/basics";
import { DataTable } from "../ui/data_table";
import { trialWord } from "../words";
import { largest } from "./tiles";

export function Expected({ trial }: { trial: TrialView }) {
  const { expectation, measurement, partial } = trial;
  if (expectation === null) return null;
  const { step_time_s, step_time_low_s: low, step_time_high_s: high, p_fits, peak_bytes } = expectation;
  const peak = largest((measurement ?? partial)?.peak_memory_bytes);
  const came = measurement?.step_time_s;
  const where = came === undefined ? "" : low <= came && came <= high ? "within" : came > high ? "slower than" : "faster than";
  const rows = [
    ["step time", `${stepTime(step_time_s)} (95 %: ${interval(low, high, stepTime)})`, stepTime(came), came === undefined ? "" : `${ratio(came, step_time_s)}, ${where} the interval`],
    ["peak memory", bytes(peak_bytes), bytes(peak), peak === null ? "" : ratio(peak, peak_bytes)],
    ["fits", probability(p_fits), trialWord(trial).word, fitWords(trial, p_fits)],
  ];
  return (
    <Card title="Expected and measured" testid="expected">
      <DataTable label="Expected and measured" heads={["quantity", "expected", "measured", "comparison"]} rows={rows} />
    </Card>
  );
}

function ratio(one: number, other: number): string {
  return `${number((100 * one) / other)} % of the expected`;
}

function fitWords({ verdict }: TrialView, p_fits: number): string {
  if (verdict === "ok" || verdict === "pruned") return p_fits >= 0.5 ? "as expected" : "better than expected";
  return verdict === "oom" ? (p_fits < 0.5 ? "as expected" : "not as expected") : "not known";
}
