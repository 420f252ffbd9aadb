"""`python -m meshtune.runners.trainer job.json`: one rank where RANK says which, else the whole job on this machine."""

from __future__ import annotations

import os
import sys

# By hand, ranks are forked from this process, and numpy's OpenBLAS would start threads when it is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from meshtune.runners.trainer.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
