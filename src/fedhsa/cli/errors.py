"""The errors that the command line prints as one sentence, without a traceback."""


class UsageError(Exception):
    """What the user typed cannot be used; the message says why and what to type instead."""


class FailedRunError(Exception):
    """Something outside the command line failed: a folder, a file, the memory."""
