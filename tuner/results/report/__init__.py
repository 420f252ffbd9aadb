"""Reports: one HTML file that needs no network and no script. `page` is the frame that anything may fill with sections;
`campaigns` fills it with campaigns. Importing any of this without its libraries raises MissingExtra."""

from meshtune.runners.extras import require_extra

require_extra("report", "a report")
