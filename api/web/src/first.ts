/** The first code of all, which needs no other: asks for what the page begins with while the frame is on its way. */
import { askAhead } from "./api/client";
import { token } from "./api/token";
import { readsOf } from "./reads";
import { place } from "./router";

if (token.get() !== "") for (const path of readsOf(place.get().route)) askAhead(path);
askAhead("whoami");
