/** The frame around every page, and which page the hash asks for. Pages but the list are loaded when they are opened. */
import type { ComponentType } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { askAhead } from "./api/client";
import { Problem, unreachable } from "./api/problem";
import { askWhoami, session } from "./api/session";
import { token } from "./api/token";
import { Campaigns } from "./pages/campaigns";
import { SignIn } from "./pages/signin";
import { readsOf } from "./reads";
import { href, place, type Route } from "./router";
import { useStore } from "./use_store";
import { Top } from "./top";
import { ButtonLink } from "./ui/basics";
import { EmptyState, ErrorState, LoadingState } from "./ui/states";

export function App() {
  const main = useRef<HTMLElement>(null);
  const now = useStore(session);
  const was = useRef(now.state);
  // With a token at hand the page is read at once, not after the answer to who it is of: a refusal ends it as well.
  useEffect(() => {
    if (now.state === "signed-in" && was.current === "signed-out") main.current?.focus(); // the form that had it is gone
    if (now.state !== "asking") was.current = now.state;
  }, [now.state]);
  const shown = now.state === "signed-in" || (now.state === "asking" && token.get() !== "");
  return (
    <>
      <button type="button" class="skip-link" onClick={() => main.current?.focus()}>
        Skip to the content
      </button>
      <Top />
      <main ref={main} class="page" tabIndex={-1}>
        {now.state === "asking" && !shown && <LoadingState lines={6} height={36} />}
        {now.state === "signed-out" && <SignIn refused={now.refused} />}
        {now.state === "trouble" && <ErrorState problem={now.problem} onRetry={() => void askWhoami()} />}
        {shown && <Page />}
      </main>
    </>
  );
}

function Page() {
  const route = useStore(place, (now) => now.route);
  useEffect(() => {
    document.title = titleOf(route);
    scrollTo(0, 0);
  }, [hashOf(route)]);
  switch (route.page) {
    case "campaigns":
      return <Campaigns />;
    case "new":
      return <Lazy load={loadCreate} />;
    case "compare":
      return <Lazy load={loadCompare} />;
    case "campaign":
      return <Lazy key={route.id} load={loadCampaign} reads={readsOf(route)} id={route.id} />;
    case "trial":
      return <Lazy key={`${route.id}/${route.number}`} load={loadTrial} id={route.id} number={route.number} />;
    case "unknown":
      return (
        <EmptyState title="There is no such page">
          <ButtonLink href={href({ page: "campaigns" })}>All campaigns</ButtonLink>
        </EmptyState>
      );
  }
}

const loadCreate = () => import("./pages/create").then((module) => module.Create);
const loadCompare = () => import("./pages/compare").then((module) => module.Compare);
const loadCampaign = () => import("./campaign/page/page").then((module) => module.CampaignPage);
const loadTrial = () => import("./trial/page").then((module) => module.TrialPage);

/** reads: the documents that the page begins with, asked for while its code is on its way. */
type LazyProps<P> = P & { load: () => Promise<ComponentType<P>>; reads?: readonly string[] };

const loaded = new Map<unknown, ComponentType<never>>();

/** A page whose code comes when it is first shown. */
function Lazy<P extends object>({ load, reads = [], ...props }: LazyProps<P>) {
  const [problem, setProblem] = useState<Problem | null>(null);
  const [, redraw] = useState({});
  const Found = loaded.get(load) as ComponentType<object> | undefined;
  const fetchIt = () => {
    setProblem(null);
    load().then(
      (page) => {
        loaded.set(load, page as ComponentType<never>);
        redraw({});
      },
      (error: unknown) => setProblem(unreachable(error)),
    );
  };
  useLayoutEffect(() => {
    if (loaded.has(load)) return;
    reads.forEach(askAhead);
    fetchIt();
  }, [load]);
  if (Found) return <Found {...props} />;
  if (problem) return <ErrorState problem={problem} onRetry={fetchIt} />;
  return <LoadingState lines={6} height={36} />;
}

function hashOf(route: Route): string {
  return route.page === "unknown" ? route.path : href(route);
}

function titleOf(route: Route): string {
  switch (route.page) {
    case "campaign":
      return `${route.id} · meshtune`;
    case "trial":
      return `trial ${route.number} of ${route.id} · meshtune`;
    case "new":
      return "new campaign · meshtune";
    case "compare":
      return "compare · meshtune";
    default:
      return "meshtune";
  }
}
