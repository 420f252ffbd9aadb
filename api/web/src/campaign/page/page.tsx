/** The page of one campaign: what was found, how, and everything that was tried. */
import { useMemo } from "preact/hooks";
import type { CampaignView } from "../../api/types";
import { setFilters, useFilter } from "../../filters";
import { ChartsTab, FailuresTab, TrialComparison } from "../../lazies";
import { useStore } from "../../use_store";
import { EmptyState, ErrorState, LoadingState, ReconnectingBanner } from "../../ui/states";
import { Tabs } from "../../ui/tabs";
import "../charts/charts.css";
import "./campaign.css";
import { columnsOf, type Mark } from "./columns";
import { useConditions } from "../data/conditions";
import { type Feed, type Snapshot, useFeed } from "../data/feed";
import { FilterBar } from "./filter_bar";
import { passes } from "../data/filters";
import { goalOf } from "../data/goal";
import { Header } from "./header";
import { Running } from "./running";
import { Tiles } from "./tiles";
import { TrialsTable } from "./trials_table";
import { type Dimension, dimensionsOf, levelsOf, varying } from "../data/values";

export function CampaignPage({ id }: { id: string }) {
  const feed = useFeed(id);
  return feed === null ? <LoadingState lines={8} height={36} /> : <Read feed={feed} />;
}

function Read({ feed }: { feed: Feed }) {
  const snapshot = useStore(feed.snapshot);
  const stream = useStore(feed.stream.state);
  const { campaign, problem } = snapshot;
  if (campaign === undefined) {
    return problem ? <ErrorState problem={problem} onRetry={() => feed.refresh()} /> : <LoadingState lines={8} height={36} />;
  }
  return (
    <>
      <Header campaign={campaign} feed={feed} />
      {problem && stream === "live" && <ErrorState problem={problem} onRetry={() => feed.refresh()} />}
      <Whole campaign={campaign} snapshot={snapshot} onChange={() => feed.refresh()} />
      <ReconnectingBanner state={stream} />
    </>
  );
}

function namesOf(dimensions: readonly Dimension[]): string {
  return dimensions.map(({ name }) => name).join();
}

/** What trials are called, by their numbers. */
function marksOf({ summary: { recommended, fastest_confirmed, fastest_once } }: CampaignView): [number, Mark][] {
  const marks = new Map<number, Mark>();
  const named = [["fastest once", fastest_once], ["fastest confirmed", fastest_confirmed], ["recommended", recommended]] as const;
  for (const [name, found] of named) {
    if (!found) continue;
    const again = fastest_confirmed && found !== fastest_once ? found.objective.value : null;
    marks.set(found.trial, { words: [name, ...(marks.get(found.trial)?.words ?? [])], again });
  }
  return [...marks];
}

const TABS = [
  ["trials", "Trials"],
  ["charts", "Charts"],
  ["failures", "Failures"],
] as const;

function Whole({ campaign, snapshot, onChange }: { campaign: CampaignView; snapshot: Snapshot; onChange: () => void }) {
  const [asked] = useFilter("tab");
  const tab = TABS.find(([name]) => name === asked)?.[0] ?? "trials";
  const { trials, trialsRead, analysis } = snapshot;
  const filters = useConditions();
  const said = goalOf(campaign);
  // Charts are remembered by the goal, so an equal one has to be the same.
  const goal = useMemo(() => said, [said.label, said.unit, said.smallerIsBetter, said.samples]);
  const shown = useMemo(() => trials.filter((trial) => passes(trial, filters)), [trials, filters]);
  const dimensions = useMemo(() => dimensionsOf(campaign), [campaign.id]);
  // Remembered by their names: an equal list has to be the same.
  const names = useMemo(() => namesOf(varying(trials, dimensions)), [trials, dimensions]);
  const varied = useMemo(() => dimensions.filter(({ name }) => names.split(",").includes(name)), [dimensions, names]);
  const others = useMemo(
    () => namesOf(dimensions.filter((one) => !varied.includes(one) && levelsOf(trials, one).length > 1)),
    [trials, dimensions, varied],
  );
  const marked = JSON.stringify(marksOf(campaign));
  const columns = useMemo(
    () => columnsOf({ campaign: campaign.id, goal, marks: new Map(JSON.parse(marked) as [number, Mark][]), varied, following: dimensions.filter(({ name }) => others.split(",").includes(name)) }),
    [campaign.id, goal, marked, dimensions, varied, others],
  );
  // In what the trials differ at all, what follows from the others included.
  const differing = useMemo(() => dimensions.filter((one) => varied.includes(one) || others.split(",").includes(one.name)), [dimensions, varied, others]);
  if (!trialsRead && trials.length === 0) {
    return (
      <>
        <Tiles campaign={campaign} />
        <LoadingState lines={4} height={90} />
      </>
    );
  }
  const { recommended, recommended_reason } = campaign.summary;
  return (
    <>
      <Tiles campaign={campaign} />
      {(recommended || campaign.summary.failures.oom) && (
        <p data-testid="recommendation">
          <strong>{recommended ? "Recommended" : "No recommendation"}:</strong> {recommended && `${recommended.plan_key}: `}
          {recommended_reason}.
        </p>
      )}
      {trials.length === 0 ? (
        <EmptyState title="No trial was planned yet">
          <p class="muted">The first is the baseline, where the campaign names one; charts follow with the first measurement.</p>
        </EmptyState>
      ) : (
        <>
          <FilterBar trials={trials} shown={shown.length} reading={!trialsRead} filters={filters} goal={goal} />
          <Tabs label="Of the campaign" tabs={TABS} value={tab} onChange={(next) => setFilters({ tab: next === "trials" ? null : next })}>
            {tab === "charts" ? (
              <ChartsTab campaign={campaign} goal={goal} dimensions={dimensions} varied={varied} differing={differing} trials={trials} shown={shown} filters={filters} analysis={analysis} />
            ) : tab === "failures" ? (
              <FailuresTab campaign={campaign} trials={trials} analysis={analysis} onChange={onChange} />
            ) : (
              <>
                <TrialsTable campaign={campaign.id} columns={columns} shown={shown} filters={filters} all={trials.length} bestFirst={goal.smallerIsBetter ? "objective" : "-objective"} />
                <Running campaign={campaign} trials={trials} />
                <TrialComparison campaign={campaign} goal={goal} trials={trials} dimensions={dimensions} />
              </>
            )}
          </Tabs>
        </>
      )}
    </>
  );
}
