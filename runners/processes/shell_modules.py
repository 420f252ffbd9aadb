"""Modules systems of sites: how a shell's text calls one, and where a job finds it."""

from __future__ import annotations

import re

# In a line of a shell: a call of the functions of a modules system.
CALLS_MODULE = re.compile(r"(?m)(?:^|[;&|(]|\b(?:then|do|else)\b)[ \t]*(?:module|ml)[ \t]")
MODULE_FILES = (
    *("$LMOD_PKG/init/bash", "$MODULESHOME/init/bash"),
    *(f"/etc/profile.d/{name}.sh" for name in ("00-modulepath", "z00_lmod", "lmod", "modules")),
    *("/usr/share/lmod/lmod/init/bash", "/usr/share/modules/init/bash"),
)
