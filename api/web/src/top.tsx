/** The line at the top: where one can go, who one is, light or dark. */
import { has, session, signOut } from "./api/session";
import { href, place } from "./router";
import { useStore } from "./use_store";
import { chooseTheme, drawnTheme, themeChoice } from "./theme";
import { Button } from "./ui/basics";

export function Top() {
  const page = useStore(place, (now) => now.route.page);
  const now = useStore(session);
  const whoami = now.state === "signed-in" ? now.whoami : null;
  const link = (name: "campaigns" | "new" | "compare" | "fit", words: string) => <a href={href({ page: name })} aria-current={page === name ? "page" : undefined}>{words}</a>;
  return (
    <header class="top">
      <div class="top-inside">
        <a class="brand" href={href({ page: "campaigns" })}>meshtune</a>
        <nav aria-label="Pages">
          {whoami && link("campaigns", "Campaigns")}
          {whoami && link("compare", "Compare")}
          {whoami && has(whoami, "launch") && link("new", "New")}
          {link("fit", "Fit")}
          <a href="./docs">API</a>
        </nav>
        <div class="row push">
          {whoami && (
            <>
              <span class="small" data-testid="whoami" title={`May ${whoami.scopes.join(", ")}; the token ${whoami.expires_at ? `expires ${whoami.expires_at}` : "does not expire"}`}>
                {whoami.name}
              </span>
              <Button kind="quiet" onClick={signOut}>Sign out</Button>
            </>
          )}
          <ThemeButton />
        </div>
      </div>
    </header>
  );
}

function ThemeButton() {
  const choice = useStore(themeChoice);
  const drawn = useStore(drawnTheme);
  const other = drawn === "dark" ? "light" : "dark";
  return (
    <Button kind="quiet" onClick={() => chooseTheme(other)} title={choice === "system" ? "As the system has it" : "Remembered"} data-testid="theme">
      {other === "dark" ? "Dark" : "Light"}
      <span class="visually-hidden"> theme</span>
    </Button>
  );
}
