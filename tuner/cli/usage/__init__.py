"""How each command is called: its arguments, options and help. What a command works with is loaded when it runs, so
that `--help` costs little: these modules import Typer and light values alone."""
