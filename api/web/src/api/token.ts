/** The bearer token lives in localStorage, never in a cookie; "" while there is none. A link of `meshtune open` brings one. */
import { Store } from "../store";

export const KEY = "meshtune.token";
const LINK = /^#token=(mt_[\w-]+)$/;

/** Keep the token of such a link, and take it out of the address and of this entry of the history. Whether there was one. */
export function takeToken(): boolean {
  const secret = LINK.exec(location.hash)?.[1];
  if (secret === undefined) return false;
  localStorage.setItem(KEY, secret);
  history.replaceState(null, "", location.pathname + location.search);
  return true;
}

if (typeof location !== "undefined") takeToken();
export const token = new Store<string>(typeof localStorage === "undefined" ? "" : (localStorage.getItem(KEY) ?? ""));

export function setToken(secret: string): void {
  if (secret) localStorage.setItem(KEY, secret);
  else localStorage.removeItem(KEY);
  token.set(secret);
}
