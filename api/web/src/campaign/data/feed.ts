/** One campaign as it is now: read once, then kept up by its events. After a gap in the events it is read again. */
import { useLayoutEffect, useState } from "preact/hooks";
import { get, withQuery } from "../../api/client";
import { asProblem, type Problem } from "../../api/problem";
import { openStream, type Stream } from "../../api/stream";
import type { Analysis, CampaignView, EventView, TrialBrief, TrialBriefPage } from "../../api/types";
import { Store } from "../../store";
import { afterFrame } from "../charts/frames";
import { campaignPath, PAGE, trialsPath } from "./paths";
import { throttle } from "./throttle";
import { upsert } from "./upsert";

/** problem: of the last read; what was read before stays. */
export interface Snapshot {
  readonly campaign?: CampaignView;
  readonly trials: readonly TrialBrief[];
  readonly trialsRead: boolean;
  readonly analysis?: Analysis;
  readonly problem?: Problem | undefined;
}

// More than that many trials at once are cheaper as pages.
const MOST_NUMBERS = 100;
const EVENTS_GAP_MS = 200;
const FINDINGS_GAP_MS = 2000;
// An analysis of thousands of trials takes the service seconds: it is not kept busy with it.
const FINDINGS_PATIENCE = 4;

export class Feed {
  readonly snapshot = new Store<Snapshot>({ trials: [], trialsRead: false });
  readonly stream: Stream;
  private readonly path: string;
  private readonly aborter = new AbortController();
  private readonly named = new Set<number>();
  private campaignAsked = false;
  private readonly events = throttle(() => this.guarded(() => this.readNamed()), EVENTS_GAP_MS);
  private readonly findings = throttle(() => this.guarded(() => this.readFindings()), FINDINGS_GAP_MS, FINDINGS_PATIENCE);

  constructor(private readonly id: string) {
    this.path = campaignPath(id);
    // What the page begins with is painted before anything else is asked for. Findings take the service longest.
    const painted = this.guarded(() => this.readAll()).then(() => new Promise<void>(afterFrame));
    void painted.then(() => this.findings.ask());
    let first = true;
    this.stream = openStream(
      id,
      {
        // What was missed before the connection costs next to nothing where nothing was.
        onReady: () => {
          void this.guarded(() => this.readAll());
          if (!first) this.findings.ask();
          first = false;
        },
        onEvent: (event) => this.hear(event),
      },
      painted,
    );
  }

  close(): void {
    this.stream.close();
    this.events.stop();
    this.findings.stop();
    this.aborter.abort();
  }

  refresh(): void {
    void this.guarded(() => this.readAll());
    this.findings.ask();
  }

  private hear(event: EventView): void {
    const number = event.data["number"];
    if (event.kind.startsWith("trial.") && typeof number === "number") this.named.add(number);
    if (event.kind.startsWith("campaign.") || event.kind.startsWith("search.") || event.kind === "trial.done") {
      this.campaignAsked = true;
    }
    if (event.kind === "trial.done" || event.kind === "campaign.completed") this.findings.ask();
    this.events.ask();
  }

  private async readNamed(): Promise<void> {
    const numbers = [...this.named];
    const campaignToo = this.campaignAsked;
    this.named.clear();
    this.campaignAsked = false;
    if (numbers.length > MOST_NUMBERS) return this.readAll();
    const path = withQuery(`${this.path}/trials`, { view: "brief", page_size: PAGE, number: numbers });
    const [page, campaign] = await Promise.all([numbers.length > 0 && this.read<TrialBriefPage>(path), campaignToo && this.read<CampaignView>(this.path)]);
    this.put({ ...(page && this.with(page.trials)), ...(campaign && { campaign }) });
    // The figures of other settings change with the baseline's runs and with second runs.
    if (page && page.trials.some(({ origin, verdict }) => origin !== "search" && verdict !== null)) await this.readTrials();
  }

  private async readAll(): Promise<void> {
    await Promise.all([this.read<CampaignView>(this.path).then((campaign) => this.put({ campaign })), this.readTrials()]);
  }

  private async readTrials(): Promise<void> {
    let token: string | null = null;
    do {
      const page: TrialBriefPage = await this.read<TrialBriefPage>(trialsPath(this.id, token));
      token = page.next_page_token;
      this.put({ ...this.with(page.trials), ...(token === null && { trialsRead: true }) });
    } while (token !== null);
  }

  private async readFindings(): Promise<void> {
    this.put({ analysis: await this.read<Analysis>(`${this.path}/analysis`) });
  }

  private with(fresh: readonly TrialBrief[]): Partial<Snapshot> {
    return { trials: upsert(this.snapshot.get().trials, fresh) };
  }

  private put(part: Partial<Snapshot>): void {
    const before = this.snapshot.get();
    const fresh = Object.entries(part).some(([name, value]) => before[name as keyof Snapshot] !== value);
    if (fresh || before.problem !== undefined) this.snapshot.set({ ...before, ...part, problem: undefined });
  }

  private read<T>(path: string): Promise<T> {
    return get<T>(path, this.aborter.signal);
  }

  private async guarded(task: () => Promise<void>): Promise<void> {
    try {
      await task();
    } catch (error) {
      if (this.aborter.signal.aborted) return;
      this.snapshot.set({ ...this.snapshot.get(), problem: asProblem(error) });
    }
  }
}

/** The feed of a campaign while the component is shown; null at the first drawing. */
export function useFeed(id: string): Feed | null {
  const [feed, setFeed] = useState<Feed | null>(null);
  useLayoutEffect(() => {
    const opened = new Feed(id);
    setFeed(opened);
    return () => opened.close();
  }, [id]);
  return feed;
}
