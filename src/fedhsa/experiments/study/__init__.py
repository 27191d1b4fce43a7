"""The interface of a study, with its outcome and its checks of claims, and the helpers that all studies share."""
