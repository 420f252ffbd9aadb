/** The frame around every page, and which page the hash asks for. */
import { useEffect, useRef } from "preact/hooks";
import { askWhoami, session } from "./api/session";
import { isTried, token } from "./api/token";
import { CampaignPage } from "./campaign/page/page";
import { Campaigns } from "./pages/campaigns";
import { SignIn } from "./pages/signin";
import { Compare, Create, FitPage, TrialPage } from "./lazies";
import { href, place, type Route } from "./router";
import { useStore } from "./use_store";
import { Top } from "./top";
import { ButtonLink } from "./ui/basics";
import { EmptyState, ErrorState, LoadingState } from "./ui/states";

export function App() {
  const main = useRef<HTMLElement>(null);
  const now = useStore(session);
  const was = useRef(now.state);
  // With a token that was accepted once the page is read at once, not after the answer to who it is of: a refusal ends it as well.
  useEffect(() => {
    if (now.state === "signed-in" && was.current === "signed-out") main.current?.focus(); // the form that had it is gone
    if (now.state !== "asking") was.current = now.state;
  }, [now.state]);
  const fit = useStore(place, ({ route }) => route.page === "fit"); // has nothing that is somebody's
  const shown = fit || now.state === "signed-in" || (now.state === "asking" && token.get() !== "" && !isTried());
  return (
    <>
      <button type="button" class="skip-link" onClick={() => main.current?.focus()}>
        Skip to the content
      </button>
      <Top />
      <main ref={main} class="page" tabIndex={-1}>
        {now.state === "asking" && !shown && <LoadingState />}
        {now.state === "signed-out" && !fit && <SignIn refused={now.refused} />}
        {now.state === "trouble" && !fit && <ErrorState problem={now.problem} onRetry={() => void askWhoami()} />}
        {now.state === "signed-in" && now.refused && <p class="mistake" role="alert">{now.refused} You are signed in as before, as {now.whoami.name}.</p>}
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
  }, [JSON.stringify(route)]);
  switch (route.page) {
    case "campaigns":
      return <Campaigns />;
    case "new":
      return <Create key={place.get().query.get("from")} />;
    case "compare":
      return <Compare />;
    case "fit":
      return <FitPage />;
    case "campaign":
      return <CampaignPage key={route.id} id={route.id} />;
    case "trial":
      return <TrialPage key={`${route.id}/${route.number}`} id={route.id} number={route.number} />;
    case "unknown":
      return <EmptyState title="There is no such page"><ButtonLink href={href({ page: "campaigns" })}>All campaigns</ButtonLink></EmptyState>;
  }
}

function titleOf(route: Route): string {
  if (route.page === "campaign") return `${route.id} · meshtune`;
  if (route.page === "trial") return `trial ${route.number} of ${route.id} · meshtune`;
  const words: Readonly<Record<string, string>> = { new: "new campaign · ", compare: "compare · ", fit: "does it fit? · " };
  return `${words[route.page] ?? ""}meshtune`;
}
