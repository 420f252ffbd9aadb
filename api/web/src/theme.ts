/** Light, dark, or as the system has it; remembered. */
import { Store } from "./store";

export type ThemeChoice = "system" | "light" | "dark";

const KEY = "meshtune.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

export const themeChoice = new Store<ThemeChoice>(remembered());
/** What is on the screen now. */
export const drawnTheme = new Store<"light" | "dark">("light");

function remembered(): ThemeChoice {
  const said = localStorage.getItem(KEY);
  return said === "light" || said === "dark" ? said : "system";
}

function apply(): void {
  const choice = themeChoice.get();
  if (choice === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = choice;
  drawnTheme.set(choice === "system" ? (system.matches ? "dark" : "light") : choice);
}

export function followTheme(): void {
  apply();
  system.addEventListener("change", apply);
}

export function chooseTheme(choice: ThemeChoice): void {
  if (choice === "system") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, choice);
  themeChoice.set(choice);
  apply();
}
