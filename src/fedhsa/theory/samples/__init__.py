"""Estimates from samples for problems whose noise has no known law."""
