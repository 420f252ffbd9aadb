/** The bearer token lives in localStorage, never in a cookie; "" while there is none. A link of `meshtune open` brings one. */
import { Store } from "../store";

export const KEY = "meshtune.token";
const LINK = /^#token=(mt_[\w-]+)$/;

/** Try the token of such a link, and take it out of the address and of this entry of the history. Whether there was one. */
export function takeToken(): boolean {
  const secret = LINK.exec(location.hash)?.[1];
  if (secret === undefined) return false;
  sessionStorage.setItem(KEY, secret);
  history.replaceState(null, "", location.pathname + location.search);
  return true;
}

if (typeof location !== "undefined") takeToken();
export const token = new Store<string>(typeof localStorage === "undefined" ? "" : (sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? ""));

/** Whether the token is a link's, which lives in sessionStorage until the service has accepted it. */
export function isTried(): boolean {
  return sessionStorage.getItem(KEY) !== null;
}

/** Back to the token of before the link. */
export function dropTried(): void {
  sessionStorage.removeItem(KEY);
  token.set(localStorage.getItem(KEY) ?? "");
}

export function setToken(secret: string): void {
  if (secret) localStorage.setItem(KEY, secret);
  else localStorage.removeItem(KEY);
  sessionStorage.removeItem(KEY);
  token.set(secret);
}
