import sys

from meshtune.runners.trainer.probe import main

sys.exit(main(sys.argv[1:]))
