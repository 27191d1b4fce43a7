"""Environments: finite models of decision processes, with exact values and policies."""
