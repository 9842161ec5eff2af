"""The words of the passkey task: what is hidden, in what, and how it is asked for.

The zoo is trained on these phrases and the passkey probe uses them, so both read them here.
The task follows Mohtashami & Jaggi (2023, arXiv:2305.16300); the wording is our own.
"""

from __future__ import annotations

INTRODUCTION = "A pass key is hidden in the text below. Find it and keep it in mind.\n"
NEEDLE = "The pass key is {key}. Keep it in mind: {key} is the pass key.\n"
QUESTION = "\nWhat is the pass key? The pass key is"
ANSWER = " {key}"
DISTRACTOR = "The {colour} locker opens with {key}. Forget about it.\n"
COLOURS = ("red", "green", "blue", "yellow", "white", "black", "brown", "grey", "purple", "orange")

# Sentences that say nothing, in this order, again and again.
FILLER = (
    "The river runs past the mill and the old bridge. "
    "Rain falls on the roofs and dries by noon. "
    "A cart goes up the hill and another comes down. "
    "Somebody shuts a window and the street is quiet.\n"
)
