"""Campaigns to begin with, which are installed with meshtune: `meshtune examples`."""
