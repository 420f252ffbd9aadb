"""What the tests of this plug-in import: the plug-in, the laboratories beside them, and those of meshtune."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[3] / "tests" / "laboratories")]
