"""What a study's report draws, by name."""

from __future__ import annotations

from collections.abc import Mapping

# Name -> what it shows.
DRAWINGS: Mapping[str, str] = {
    "rows": "the published figures beside ours",
    "best_so_far": "the best found after each trial, of several searches",
    "failures": "the share of failed trials as a campaign goes on",
    "shapley": "what each knob accounts for, by SHAP",
    "worth": "what a change of each knob is worth",
}
