/** The page of one campaign: the answer, the reason, and everything that was tried. */
import type { ComponentProps, VNode } from "preact";
import { useMemo } from "preact/hooks";
import type { CampaignView, Plan } from "../../api/types";
import { setFilters, useFilter, useFilters } from "../../filters";
import { count } from "../../format";
import { AboutTab, ChartsTab, FailuresTab, TrialComparison } from "../../lazies";
import { useStore } from "../../use_store";
import { Button } from "../../ui/basics";
import { ErrorState, LoadingState, ReconnectingBanner } from "../../ui/states";
import { Tabs } from "../../ui/tabs";
import "../charts/charts.css";
import "./campaign.css";
import { Answer, Lost } from "./answer";
import { columnsOf } from "./columns";
import { useConditions } from "../data/conditions";
import { type Feed, type Snapshot, useFeed } from "../data/feed";
import { FilterBar } from "./filter_bar";
import { passes } from "../data/filters";
import { goalOf } from "../data/goal";
import { goesOn, Header } from "./header";
import { pick, pickedOf } from "../data/picked";
import { RunStrip } from "./running";
import { settingsOf } from "../data/settings";
import { TrialsTable } from "./trials_table";
import { dimensionsOf, levelsOf, varying } from "../data/values";
import { Why } from "./why";

export function CampaignPage({ id }: { id: string }) {
  const feed = useFeed(id);
  return feed === null ? <LoadingState /> : <Read feed={feed} />;
}

function Read({ feed }: { feed: Feed }) {
  const snapshot = useStore(feed.snapshot);
  const stream = useStore(feed.stream.state);
  const { campaign, problem } = snapshot;
  const refresh = () => feed.refresh();
  const error = problem && <ErrorState problem={problem} onRetry={refresh} />;
  if (campaign === undefined) return error ?? <LoadingState />;
  return (
    <>
      <Header campaign={campaign} feed={feed} />
      {stream === "live" && error}
      <Whole campaign={campaign} snapshot={snapshot} />
      <ReconnectingBanner state={stream} />
    </>
  );
}

/** What settings are called, by the numbers of their trials. */
function marksOf({ summary: { recommended, fastest_confirmed, fastest_once } }: CampaignView): [number, string][] {
  const named = [["fastest once", fastest_once], ["fastest confirmed", fastest_confirmed], ["recommended", recommended]] as const;
  return named.flatMap(([name, found]) => (found ? [[found.trial, name]] : []));
}

function Whole({ campaign, snapshot }: { campaign: CampaignView; snapshot: Snapshot }) {
  const { trials, trialsRead, analysis } = snapshot;
  const filters = useConditions();
  const said = goalOf(campaign);
  // Charts are remembered by the goal, so an equal one has to be the same.
  const goal = useMemo(() => said, Object.values(said));
  const rows = useMemo(() => settingsOf(trials), [trials]);
  const shown = useMemo(() => rows.filter((row) => passes(row, filters)), [rows, filters]);
  const dimensions = useMemo(() => dimensionsOf(campaign), [campaign.id]);
  // In what the trials differ: without what follows from the others, and at all.
  const differ = useMemo(() => [varying(trials, dimensions), dimensions.filter((one) => levelsOf(trials, one).length > 1)] as const, [trials, dimensions]);
  // Remembered by their names: an equal list has to be the same.
  const [varied, differing] = useMemo(() => differ, [dimensions, JSON.stringify(differ.map((those) => those.map(({ name }) => name)))]);
  const marked = JSON.stringify([marksOf(campaign), trials.find(({ origin }) => origin === "baseline")?.plan]);
  const columns = useMemo(() => {
    const [marks, baseline] = JSON.parse(marked) as [[number, string][], Plan | undefined];
    return columnsOf({ campaign: campaign.id, goal, marks: new Map(marks), varied, following: differing.filter((one) => !varied.includes(one)), baseline });
  }, [campaign.id, goal, marked, varied, differing]);
  const { fastest_once, failed } = campaign.summary;
  const [asked] = useFilter("tab");
  const all = [["trials", "Trials"], ["charts", fastest_once && "Charts"], ["failures", failed > 0 && `Failures ${count(failed)}`], ["about", "Spec and notes"]] as const;
  const tabs = all.filter(([, words]) => words);
  const tab = tabs.find(([name]) => name === asked)?.[0] ?? "trials";
  const runs = useMemo(() => (tab === "charts" ? trials.filter((trial) => passes(trial, filters)) : []), [tab, trials, filters]);
  const bar = (menu?: VNode) => <FilterBar trials={rows} shown={shown.length} reading={!trialsRead} filters={filters} goal={goal}>{menu}</FilterBar>;
  return (
    <>
      {goesOn(campaign) && <RunStrip campaign={campaign} trials={trials} />}
      {fastest_once || goesOn(campaign) ? <Answer campaign={campaign} rows={rows} /> : <Lost campaign={campaign} trials={trials} />}
      <Why campaign={campaign} analysis={analysis} />
      <Tabs label="Of the campaign" tabs={tabs} value={tab} onChange={(next) => setFilters({ tab: next === "trials" ? null : next })}>
        {tab === "charts" ? (
          <>
            {bar()}
            <ChartsTab campaign={campaign} goal={goal} dimensions={dimensions} varied={varied} differing={differing} trials={trials} shown={runs} filters={filters} analysis={analysis} />
          </>
        ) : tab === "failures" ? (
          <FailuresTab campaign={campaign} trials={trials} analysis={analysis} />
        ) : tab === "about" ? (
          <AboutTab campaign={campaign} />
        ) : trials.length === 0 && !trialsRead ? (
          <LoadingState />
        ) : (
          <>
            <TrialsTable bar={bar} campaign={campaign.id} columns={columns} shown={shown} filters={filters} all={rows.length} bestFirst={goal.smallerIsBetter ? "objective" : "-objective"} />
            <Beside campaign={campaign} goal={goal} rows={rows} dimensions={dimensions} />
          </>
        )}
      </Tabs>
    </>
  );
}

/** Once settings are ticked: the way to have them side by side, and that. */
function Beside(compared: Omit<ComponentProps<typeof TrialComparison>, "onClose">) {
  const picked = pickedOf(useFilters());
  const [open, setOpen] = useFilter("beside");
  if (picked.length < 2) return null;
  return (
    <div class="compare-bar row" data-testid="compare-bar">
      <Button kind="primary" onClick={() => setOpen("yes")}>Compare {picked.length}</Button>
      <Button kind="quiet" onClick={() => pick([])}>Untick all</Button>
      {open && <TrialComparison {...compared} onClose={() => setOpen("")} />}
    </div>
  );
}
