/** Starts the page. */
import { render } from "preact";
import { askWhoami } from "./api/session";
import { App } from "./app";
import { followHash } from "./router";
import { followTheme } from "./theme";
import { followKeys } from "./keys";
import "./theme.css";
import "./ui/frame.css";
import "./ui/ui.css";
import "./ui/panels.css";
import "./pages/pages.css";

followTheme();
followHash();
followKeys();
const root = document.getElementById("app");
// First, as the page asks for what it shows.
if (root) render(<App />, root);
void askWhoami();
