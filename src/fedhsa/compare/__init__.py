"""Comparing methods on equal terms: tuning with the same effort, runs on the same observations, a ranking."""
