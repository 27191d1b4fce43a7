"""The paper: its constants, its assumptions, its bounds, and what a run measures of them."""
