/** The bearer token lives in localStorage, never in a cookie; "" while there is none. */
import { Store } from "../store";

const KEY = "meshtune.token";

export const token = new Store<string>(typeof localStorage === "undefined" ? "" : (localStorage.getItem(KEY) ?? ""));

export function setToken(secret: string): void {
  if (secret) localStorage.setItem(KEY, secret);
  else localStorage.removeItem(KEY);
  token.set(secret);
}
