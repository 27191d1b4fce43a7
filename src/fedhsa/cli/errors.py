"""The errors that the command line prints as one sentence, without a traceback."""


class UsageError(Exception):
    """The user's input cannot be used; the message states the reason and the input to use instead."""


class FailedRunError(Exception):
    """Something outside the command line failed: a folder, a file, the memory."""
