import sys

from meshtune.runners.trainer.exact import main

sys.exit(main(sys.argv[1:]))
