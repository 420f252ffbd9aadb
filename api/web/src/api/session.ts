/** Who uses the page: the answer of /v1/whoami, and which scopes it has. */
import { Store } from "../store";
import { useStore } from "../use_store";
import { forget, get, tellUnauthorized } from "./client";
import { asProblem, type Problem } from "./problem";
import { KEY, setToken, token } from "./token";
import type { CampaignView, Scope, WhoamiView } from "./types";

export type Session =
  | { state: "asking" }
  | { state: "signed-out"; refused: string }
  | { state: "signed-in"; whoami: WhoamiView }
  | { state: "trouble"; problem: Problem };

export const session = new Store<Session>({ state: "asking" });

/** Ask the service who this is; called at the start, and after a token was entered. */
export async function askWhoami(): Promise<void> {
  if (session.get().state !== "signed-in") session.set({ state: "asking" });
  try {
    session.set({ state: "signed-in", whoami: await get<WhoamiView>("whoami") });
  } catch (error) {
    const problem = asProblem(error);
    if (problem.status === 401) signedOut(problem); // it may have been asked before we listened
    else session.set({ state: "trouble", problem });
  }
}

export async function signIn(secret: string): Promise<void> {
  setToken(secret.trim());
  forget();
  await askWhoami();
}

export function signOut(): void {
  setToken("");
  forget();
  session.set({ state: "signed-out", refused: "" });
}

function signedOut(problem: Problem): void {
  session.set({ state: "signed-out", refused: token.get() ? problem.message : "" });
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
