/** Trials by how they ended: each outcome with its shape, its colour and its word, so that none is told by colour alone. */
import type { TrialBrief, TrialState, Verdict } from "../../api/types";
import { count } from "../../format";
import { type Tone, VERDICT_TONES } from "../../words";
import { wordOf } from "../data/conditions";
import { outcomeOf } from "../data/values";
import { marks, shapeOf } from "./marks";

export function toneOf(outcome: string): Tone {
  return VERDICT_TONES[outcome as Verdict] ?? ((outcome as TrialState) === "running" ? "running" : "plain");
}

/** Those of each outcome together, the most frequent first: it lies under the others. */
export function outcomesOf<T>(all: readonly T[], trialOf: (one: T) => TrialBrief): [string, Tone, T[]][] {
  const found = new Map<string, T[]>();
  for (const one of all) {
    const outcome = outcomeOf(trialOf(one));
    const some = found.get(outcome);
    if (some) some.push(one);
    else found.set(outcome, [one]);
  }
  return [...found].map(([outcome, some]): [string, Tone, T[]] => [outcome, toneOf(outcome), some]).sort((a, b) => b[2].length - a[2].length);
}

/** bars: as filled boxes, and not as marks. */
export function OutcomeLegend({ trials, bars = false }: { trials: readonly TrialBrief[]; bars?: boolean }) {
  return (
    <ul class="chart-legend">
      {outcomesOf(trials, (trial) => trial).map(([outcome, tone, some]) => (
        <li key={outcome}>
          <svg class="outcome-key" width="14" height="12" aria-hidden="true">
            {bars ? <path class={`bar-${tone}`} d="M0 1h14v10h-14z" /> : <path class={`dots dots-${tone}`} d={marks([[7, 6]], shapeOf(outcome))} />}
          </svg>
          {count(some.length)} {wordOf(outcome)}
        </li>
      ))}
    </ul>
  );
}
