/** The list of campaigns, live: filtered, sorted and cut into pages by the service. */
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { withQuery } from "../api/client";
import { useResource } from "../api/resource";
import { session, useCan } from "../api/session";
import type { CampaignPage, CampaignState } from "../api/types";
import { clearFilters, filterValues, setFilters, useFilter, useFilters } from "../filters";
import { useLive } from "../live";
import { href } from "../router";
import { useStore } from "../use_store";
import { Button, ButtonLink, Card, Chip } from "../ui/basics";
import { JsonLink } from "../ui/json";
import { EmptyState, ErrorState, LiveMark, LoadingState, ReconnectingBanner } from "../ui/states";
import { parseSort, sortText } from "../ui/table";
import { Title } from "../ui/title";
import { CAMPAIGN_TONES } from "../words";
import { CampaignTable, toggled, type TableProps } from "./campaign_table";

const STATES = Object.keys(CAMPAIGN_TONES) as CampaignState[];
const NEWEST = "-created_at";
const PAGE_SIZE = 50;
/** While the stream is away the list is read so often; with it, to keep what makes no events (such as trouble) fresh. */
const POLL_MS = 5_000;
const POLL_LIVE_MS = 30_000;

const NEW = (
  <ButtonLink kind="primary" href={href({ page: "new" })}>
    New campaign
  </ButtonLink>
);

export function Campaigns() {
  const filters = useFilters();
  const [tokens, setTokens] = useState<string[]>([]);
  const [picked, pick] = useState<string[]>([]);
  const query = filters.toString();
  useEffect(() => setTokens([]), [query]);
  const path = withQuery("campaigns", {
    state: filters.getAll("state"),
    owner: filters.get("owner"),
    name: filters.get("name"),
    tag: filters.getAll("tag"),
    sort: filters.get("sort") ?? NEWEST,
    page_size: PAGE_SIZE,
    page_token: tokens.at(-1),
  });
  const refresh = useRef<() => void>(() => {});
  const live = useLive(null, useCallback(() => refresh.current(), []));
  const page = useResource<CampaignPage>(path, live === "live" ? POLL_LIVE_MS : POLL_MS);
  refresh.current = page.refresh;
  const mayLaunch = useCan("launch");

  return (
    <>
      <div class="page-head">
        <Title>Campaigns</Title>
        <JsonLink path={path} />
        <LiveMark state={live} />
        {mayLaunch && <div class="push wide-only">{NEW}</div>}
      </div>
      <Filters page={page.data} />
      {page.data?.unreadable?.map((words) => <p class="muted">Left out: {words}</p>)}
      {page.problem && !page.data ? (
        <ErrorState problem={page.problem} onRetry={page.refresh} />
      ) : (
        <Card testid="campaigns">
          {page.data ? <Found page={page.data} onChange={page.refresh} picked={picked} onPick={pick} /> : <LoadingState lines={8} height={40} />}
        </Card>
      )}
      {picked.length > 0 && (
        <div class="row selection">
          <ButtonLink kind="primary" href={href({ page: "compare" }, picked.map((id) => ["campaign", id]))}>
            Compare {picked.length}
          </ButtonLink>
          <Button onClick={() => pick([])}>Choose none</Button>
        </div>
      )}
      <Pages next={page.data?.next_page_token ?? null} tokens={tokens} onTokens={setTokens} />
      <ReconnectingBanner state={live} />
    </>
  );
}

function Found({ page, ...rest }: { page: CampaignPage } & Omit<TableProps, "campaigns" | "sort" | "onSort">) {
  const sort = parseSort(useFilter("sort")[0] || NEWEST);
  if (page.campaigns.length > 0)
    return <CampaignTable campaigns={page.campaigns} sort={sort} onSort={(next) => setFilters({ sort: sortText(next) })} {...rest} />;
  if (isFiltered())
    return (
      <EmptyState title="No campaign passes the filters">
        <Button onClick={() => clearFilters(["sort"])}>Clear the filters</Button>
      </EmptyState>
    );
  return (
    <EmptyState title="There are no campaigns yet">
      <p class="muted">A campaign tries settings of one training job by short real runs, and keeps the fastest.</p>
      {NEW}
    </EmptyState>
  );
}

function isFiltered(): boolean {
  return ["state", "owner", "name", "tag"].some((name) => filterValues(name).length > 0);
}

function Filters({ page }: { page: CampaignPage | undefined }) {
  const filters = useFilters();
  const [states, tags] = [filters.getAll("state"), filters.getAll("tag")];
  return (
    <div class="row filters">
      <NameFilter />
      <OwnerFilter page={page} />
      {tags.map((tag) => (
        <Chip key={tag} onRemove={() => setFilters({ tag: toggled(tags, tag) })} testid={`tag-${tag}`}>
          tag {tag}
        </Chip>
      ))}
      <div class="row" role="group" aria-label="State">
        {STATES.map((state) => (
          <Chip key={state} tone={CAMPAIGN_TONES[state]} pressed={states.includes(state)} onClick={() => setFilters({ state: toggled(states, state) })}>
            {state}
          </Chip>
        ))}
      </div>
      <Button kind="quiet" onClick={() => clearFilters(["sort"])} disabled={!isFiltered()}>
        Clear
      </Button>
    </div>
  );
}

/** What is typed goes into the hash, and so to the service, when the typing rests. */
function NameFilter() {
  const [name, setName] = useFilter("name");
  const [typed, setTyped] = useState(name);
  const sent = useRef(name);
  useEffect(() => {
    if (name !== sent.current) setTyped(name); // from elsewhere: what is typed on is newer than what was sent
    sent.current = name;
  }, [name]);
  useEffect(() => {
    if (typed === name) return;
    const timer = setTimeout(() => setName((sent.current = typed)), 250);
    return () => clearTimeout(timer);
  }, [typed]);
  return <input type="search" data-filter aria-label="Name contains" placeholder="Name contains  ( / )" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />;
}

/** The owners seen so far, and oneself. */
function OwnerFilter({ page }: { page: CampaignPage | undefined }) {
  const [owner, setOwner] = useFilter("owner");
  const me = useStore(session, (now) => (now.state === "signed-in" ? now.whoami.name : ""));
  const seen = useRef(new Set<string>());
  const owners = useMemo(() => {
    for (const name of [me, owner, ...(page?.campaigns ?? []).map((campaign) => campaign.owner)]) if (name) seen.current.add(name);
    return [...seen.current].sort();
  }, [page, owner, me]);
  return (
    <select aria-label="Owner" value={owner} onChange={(event) => setOwner(event.currentTarget.value)}>
      <option value="">Of anybody</option>
      {owners.map((name) => (
        <option key={name} value={name}>
          {name === me ? `Of ${name} (you)` : `Of ${name}`}
        </option>
      ))}
    </select>
  );
}

function Pages({ next, tokens, onTokens }: { next: string | null; tokens: string[]; onTokens: (tokens: string[]) => void }) {
  if (!next && tokens.length === 0) return null;
  return (
    <nav class="row" aria-label="Pages of the list">
      <Button disabled={tokens.length === 0} onClick={() => onTokens(tokens.slice(0, -1))}>
        Previous
      </Button>
      <span class="muted">page {tokens.length + 1}</span>
      <Button disabled={!next} onClick={() => next && onTokens([...tokens, next])}>
        Next
      </Button>
    </nav>
  );
}
