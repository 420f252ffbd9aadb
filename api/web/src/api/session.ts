/** Who uses the page: the answer of /v1/whoami, and which scopes it has. */
import { Store } from "../store";
import { useStore } from "../use_store";
import { forget, get, tellUnauthorized } from "./client";
import { asProblem, type Problem } from "./problem";
import { dropTried, isTried, KEY, setToken, token } from "./token";
import type { CampaignView, Scope, WhoamiView } from "./types";

export type Session =
  | { state: "asking" }
  | { state: "signed-out"; refused: string }
  | { state: "signed-in"; whoami: WhoamiView; refused: string }
  | { state: "trouble"; problem: Problem };

export const session = new Store<Session>({ state: "asking" });

/** Why the token of a link was refused. */
let refused = "";

/** Ask the service who this is; called at the start, and after a token was entered. */
export async function askWhoami(): Promise<void> {
  if (session.get().state !== "signed-in") session.set({ state: "asking" });
  try {
    const whoami = await get<WhoamiView>("whoami");
    if (isTried()) setToken(token.get());
    session.set({ state: "signed-in", whoami, refused });
  } catch (error) {
    const problem = asProblem(error);
    if (problem.status !== 401) session.set({ state: "trouble", problem }); // a refusal is told to `signedOut`
  }
}

export async function signIn(secret: string): Promise<void> {
  setToken(secret.trim());
  refused = "";
  forget();
  await askWhoami();
}

export function signOut(): void {
  setToken("");
  sessionStorage.clear(); // drafts
  forget();
  session.set({ state: "signed-out", refused: "" });
}

function signedOut(problem: Problem): void {
  if (!isTried()) return session.set({ state: "signed-out", refused: token.get() ? problem.message : refused });
  refused = `The token of the link was refused: ${problem.message}`;
  dropTried();
  forget();
  void askWhoami();
}

tellUnauthorized(signedOut);

/** Another page of this browser has signed in or out. */
if (typeof addEventListener !== "undefined")
  addEventListener("storage", ({ key, newValue }) => {
    if (key !== KEY && key !== null) return;
    if (newValue) void signIn(newValue);
    else signOut();
  });

/** True where the token has the scope; read:all contains read, and admin all. */
export function useCan(scope: Scope): boolean {
  return useStore(session, (now) => now.state === "signed-in" && has(now.whoami, scope));
}

/** True where the token may move the campaign: its own, one of its projects, and with admin any. */
export function useChanges({ owner, project }: CampaignView): boolean {
  return useStore(session, (now) => {
    if (now.state !== "signed-in") return false;
    const { whoami } = now;
    return has(whoami, "admin") || (owner !== "" && owner === whoami.name) || whoami.projects.includes(project);
  });
}

export function has(whoami: WhoamiView, scope: Scope): boolean {
  const { scopes } = whoami;
  return scopes.includes(scope) || scopes.includes("admin") || (scope === "read" && scopes.includes("read:all"));
}
