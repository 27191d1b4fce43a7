"""One counter of pedestrians in a federation: it reads its own file, and learns to forecast together with the others.

`fedhsa deploy` calls `build` on every node, with the name of the node's own file in `context.config["data"]`.
"""

import pathlib

import pandas as pd

from fedhsa.deploy import AgentContext, MeasuredAgent
from fedhsa.problems import streams

WEEK = 168
AGREED = {"lags": (1, 2, 24, WEEK), "standardise": {"Count": (700.0, 900.0)}, "batch": WEEK, "missing": "skip"}
"""The same at every counter, and from nobody's data: what coefficients mean depends on all of it."""


def read(name: str | None) -> streams.Streams:
    """A counter's own stream; the last fifth of the file is kept for a test."""
    if not name:
        raise ValueError("`data` must name this node's file: `--data PATH`, or data='PATH' in `--node-config`.")
    path = pathlib.Path(name).expanduser()
    if not path.is_file():
        raise ValueError(f"`data`: there is no file {str(path)!r} on this node.")
    return streams.from_dataframe(pd.read_csv(path), agent=None, target="Count", time="Date_Time", **AGREED)


def build(context: AgentContext) -> MeasuredAgent:
    """The agent of this node, and how it measures a forecast: on the last fifth of its file, never learnt."""
    made = read(context.config.get("data"))
    return MeasuredAgent(made.agent(), made.held_out())
