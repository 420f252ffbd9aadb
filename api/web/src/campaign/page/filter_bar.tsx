/** Which settings charts and table show: outcomes with their counts, a text, and every condition to be removed. */
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import type { TrialBrief } from "../../api/types";
import { setFilters } from "../../filters";
import { count } from "../../format";
import { Button, Chip } from "../../ui/basics";
import { toneOf, VERDICT_TONES, wordOf } from "../../words";
import { clearConditions, conditionWords, setConditions } from "../data/conditions";
import { type Filters, isEmpty, passes, withWord } from "../data/filters";
import type { Goal } from "../data/goal";
import { outcomeOf } from "../data/values";

const ORDER = [...Object.keys(VERDICT_TONES), "planned", "submitted", "running"];

interface FilterBarProps {
  trials: readonly TrialBrief[];
  shown: number;
  /** More are on their way. */
  reading: boolean;
  filters: Filters;
  goal: Goal;
  /** At the end of its line. */
  children?: ComponentChildren;
}

export function FilterBar({ trials, shown, reading, filters, goal, children }: FilterBarProps) {
  const counts = useMemo(() => countOutcomes(trials, filters), [trials, filters]);
  const { verdict, ...others } = filters.on;
  const chosen = verdict?.kind === "words" ? verdict.words : [];
  const outcomes = ORDER.filter((outcome) => counts.has(outcome) || chosen.includes(outcome));
  return (
    <section class="filter-bar" aria-label="Filters" data-testid="filters">
      <div class="row">
        <Chip pressed={verdict === undefined} onClick={() => setConditions({ verdict: null })} testid="outcome-all">
          all <span class="muted">{count([...counts.values()].reduce((sum, one) => sum + one, 0))}</span>
        </Chip>
        {outcomes.map((outcome) => (
          <Chip key={outcome} tone={toneOf(outcome)} pressed={chosen.includes(outcome)} onClick={() => setConditions({ verdict: withWord(verdict, outcome) })} testid={`outcome-${outcome}`}>
            {wordOf(outcome)} <span class="muted">{count(counts.get(outcome) ?? 0)}</span>
          </Chip>
        ))}
        <input
          type="search"
          class="filter-text"
          data-filter
          aria-label="Filter by text"
          placeholder="Filter by text ( / )"
          value={filters.text}
          onInput={(event) => setFilters({ text: event.currentTarget.value || null })}
        />
      </div>
      <div class="row conditions" role="group" aria-label="Conditions">
        <span class="small muted" role="status" data-testid="shown">
          {count(shown)} of {count(trials.length)} settings{reading && ", reading more"}
        </span>
        {Object.entries(others).map(([name, condition]) => (
          <Chip key={name} onRemove={() => setConditions({ [name]: null })} testid={`condition-${name}`}>
            {conditionWords(name, condition, goal)}
          </Chip>
        ))}
        {!isEmpty(filters) && (
          <Button kind="quiet" onClick={clearConditions} data-testid="clear-all">Clear all</Button>
        )}
        <span class="push">{children}</span>
      </div>
    </section>
  );
}

/** How many trials pass the other filters, by outcome. */
function countOutcomes(trials: readonly TrialBrief[], filters: Filters): Map<string, number> {
  const counts = new Map<string, number>();
  for (const trial of trials) {
    const outcome = outcomeOf(trial);
    counts.set(outcome, (counts.get(outcome) ?? 0) + Number(passes(trial, filters, "verdict")));
  }
  return counts;
}
