"""Job scripts that were exported before 0.2 start this."""

import sys

from meshtune.runners.schedulers.batch.launch_wrapper import main

if __name__ == "__main__":
    sys.exit(main(prefix=sys.argv[1:]))
