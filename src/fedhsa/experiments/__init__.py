"""Experiments: the figures and claims of the paper, reproduced with many seeds, intervals and verdicts."""

PRESETS = ("paper", "scripts")
"""Whose numbers: those of the paper's text, or of its authors' public scripts."""
