"""The commands, a file for each panel of `meshtune --help`, each with its arguments, options and help.

What a command works with is imported inside it, so that `--help` costs little: at their top these modules import Typer
and light values alone (docs/decisions/structure.md#d0044). What takes more than a few lines to compute or to draw
stands beside them.
"""
