"""One counter of pedestrians in a federation: it reads its own file, and learns to forecast together with the others.

`fedhsa deploy` calls `build` on every node, with the name of the node's own file in `context.config["data"]`.
"""

import pathlib

import pandas as pd

from fedhsa.deploy import AgentContext, MeasuredAgent
from fedhsa.problems import streams

WEEK = 168
AGREED = {"lags": (1, 2, 24, WEEK), "standardise": {"Count": (700.0, 900.0)}, "batch": WEEK, "missing": "skip"}
"""Common to all counters and independent of their data: the meaning of the coefficients depends on it."""


def read(name: str | None) -> streams.Streams:
    """Returns a counter's own stream; the last fifth of the file is held out for a test."""
    if not name:
        raise ValueError("`data` must name this node's file: `--data PATH`, or data='PATH' in `--node-config`.")
    path = pathlib.Path(name).expanduser()
    if not path.is_file():
        raise ValueError(f"`data`: there is no file {str(path)!r} on this node.")
    return streams.from_dataframe(pd.read_csv(path), agent=None, target="Count", time="Date_Time", **AGREED)


def build(context: AgentContext) -> MeasuredAgent:
    """Returns the agent of this node, which measures its forecasts on the held-out last fifth of its file."""
    made = read(context.config.get("data"))
    return MeasuredAgent(made.agent(), made.held_out())
