"""How studies run and are kept: which there are, the runner, and the store of outcomes."""
