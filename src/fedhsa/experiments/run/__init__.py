"""Running studies: the list of studies, the runner, and the store of outcomes."""
