"""The page of a reproduction: figures, numbers and verdicts in one HTML file."""
