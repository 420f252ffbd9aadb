"""Figures of campaigns: functions from values to matplotlib Figures, without pyplot; `canvas.svg` makes text of one.

They can be told apart in grey and by colour-blind people: what has a colour of its own has a shape or hatch, too.
Importing any of this without Matplotlib raises MissingExtra, with the command that installs it.
"""

from meshtune.runners.extras import require_extra

require_extra("report", "drawing figures")
