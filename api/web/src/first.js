/** The first code of all, which needs no other: tries the token of a link of `meshtune open`, before anything is asked with an
 * older one, and asks for what a campaign's page begins with while the page's code is on its way. `api/client.ts` takes the
 * answers; first.test.ts checks that the page asks for the very same. */
const link = /^#token=(mt_[\w-]+)$/.exec(location.hash)?.[1];
if (link) {
  sessionStorage.setItem("meshtune.token", link);
  history.replaceState(null, "", location.pathname + location.search);
}
const secret = sessionStorage.getItem("meshtune.token") ?? localStorage.getItem("meshtune.token");
const campaign = /^#(\/campaigns\/[^/?]+)(\?|$)/.exec(location.hash)?.[1];
if (secret) {
  const own = campaign ? [campaign, `${campaign}/trials?view=brief&page_size=1000`] : [];
  const headers = { Authorization: `Bearer ${secret}` };
  globalThis.asked = new Map([...own, "/whoami"].map((path) => [path.slice(1), fetch(`v1${path}`, { headers, cache: "no-store" })]));
}
