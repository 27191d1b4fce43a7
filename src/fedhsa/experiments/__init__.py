"""Experiments: the figures and claims of the paper, reproduced with many seeds, intervals and verdicts."""
