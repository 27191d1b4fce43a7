"""The settings of the commands that stay: `fedhsa deploy superlink` on a server, `fedhsa deploy node` on a node."""

import dataclasses
import pathlib
from typing import Annotated, Any

import tyro

from .. import _check
from .errors import UsageError
from .settings import AbstractFlags


@dataclasses.dataclass(frozen=True)
class SuperlinkSettings(AbstractFlags):
    """The settings of `fedhsa deploy superlink`."""

    command = "deploy superlink"
    description = """\
Runs Flower's SuperLink so that only this machine reaches it, and before it a
gate that the nodes reach. The gate passes on what nodes need, from nodes whose
certificate is in the folder `nodes` of the keys; whatever else knocks is
refused. A node that is added there may connect within a second, one that is
removed no longer.

Examples:
  fedhsa deploy superlink --keys server --listen 0.0.0.0:8000
and in a second terminal, a run:
  fedhsa deploy flower --superlink 127.0.0.1:8001 --keys server --rounds 50

Clocks: Flower refuses a node whose clock is more than 5 seconds ahead of this
machine's, or more than 5 minutes behind it.
"""

    keys: Annotated[pathlib.Path, tyro.conf.arg(metavar="FOLDER")] = pathlib.Path("server")
    """The server's folder of `fedhsa deploy keys`."""
    listen: Annotated[str, tyro.conf.arg(metavar="HOST:PORT")] = "0.0.0.0:8000"
    """Where the gate listens."""
    inner_port: Annotated[int, tyro.conf.arg(metavar="PORT")] = 8001
    """The SuperLink's own port, on this machine alone; 0 for any that is free."""
    logs: Annotated[pathlib.Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Keep the SuperLink's log there."""


@dataclasses.dataclass(frozen=True)
class NodeSettings(AbstractFlags):
    """The settings of `fedhsa deploy node`."""

    command = "deploy node"
    description = """\
Runs a node, which stays: it connects to the server, takes part in whatever runs
it starts, and connects again when the connection or the server was lost. The
certificate in its folder says which agent it is. It runs no code that the
server sends: an agent or an algorithm of your own comes from this command line.

Examples:
  fedhsa deploy node --server 192.0.2.7:8000 --keys node-0
  fedhsa deploy node --server 192.0.2.7:8000 --keys node-0 \\
      --agent site.py:build --data my.csv
  fedhsa deploy node --superlink 192.0.2.7:8000 --keys node-0    (on Flower)

The folder also gets the node's state, its log site.log, and audit.jsonl, which
says what has left it; `fedhsa deploy status node-0` shows that. Noise and limits
are this node's own: no server can change them.
"""

    keys: Annotated[pathlib.Path, tyro.conf.arg(metavar="FOLDER")] = pathlib.Path(".")
    """The node's folder of `fedhsa deploy keys`."""
    server: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT", help_behavior_hint="")] = None
    """The server of `fedhsa deploy grpc`."""
    superlink: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT", help_behavior_hint="")] = None
    """The gate of `fedhsa deploy superlink`, or a SuperLink of Flower's."""
    state: Annotated[
        pathlib.Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="(default: that of the keys)")
    ] = None
    """The folder for what the node must not forget, its log and its audit."""
    agent: Annotated[str | None, tyro.conf.arg(metavar="FILE.py:FUNCTION", help_behavior_hint="")] = None
    """The function (also MODULE:FUNCTION) that builds this node's agent from its own data."""
    data: Annotated[str, tyro.conf.arg(metavar="PATH", help_behavior_hint="")] = ""
    """What this function gets as `data`, for instance a file; {number} stands for the agent's number."""
    allow: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE.py:NAME", help_behavior_hint="")] = ()
    """Further code of this machine that a run may name, such as an algorithm of your own."""
    plan: Annotated[pathlib.Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """Take part in runs of this plan alone: a JSON file, such as runs/RUN/plan.json that an earlier run left."""
    clip: Annotated[float | None, tyro.conf.arg(metavar="NORM", help_behavior_hint="")] = None
    """With noise: shorten every reply to this norm."""
    noise: Annotated[float | None, tyro.conf.arg(metavar="MULTIPLIER", help_behavior_hint="")] = None
    """Add Gaussian noise to every reply, with this many times twice the clip as its standard deviation."""
    epsilon: Annotated[float | None, tyro.conf.arg(metavar="EPSILON", help_behavior_hint="")] = None
    """With noise: stop answering before more privacy than this is spent."""
    delta: Annotated[float | None, tyro.conf.arg(metavar="DELTA", help_behavior_hint="(default: 1e-5)")] = None
    """With noise: the probability with which epsilon may not hold."""
    noise_shared_by: Annotated[int | None, tyro.conf.arg(metavar="K", help_behavior_hint="")] = None
    """With noise and secure aggregation: add a K-th of it, so that the sum over K agents who do so has it all."""
    secure_aggregation: bool = False
    """Answer only in runs with secure aggregation, where replies leave under masks and the server learns sums alone."""
    minimum_cohort: Annotated[int | None, tyro.conf.arg(metavar="K", help_behavior_hint="(default: all agents)")] = None
    """With secure aggregation: answer among at least so many sites, where a run may leave out those that are away."""
    release_metrics: bool = False
    """With noise or secure aggregation: send what this site measures on its data all the same, as it is."""
    max_rounds: Annotated[int | None, tyro.conf.arg(metavar="T", help_behavior_hint="")] = None
    """Take part in no more than so many rounds, in all runs together."""
    max_restarts: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: 100)")] = None
    """Begin a round again no more often than this."""
    exchanges: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: all)")] = ()
    """Answer only these exchanges, like operator and delta; `measure` stands for what this site measures."""
    sync: bool = True
    """Let the state survive a loss of power, for which every answer waits for the disk; --no-sync saves that time."""
    metrics: Annotated[str, tyro.conf.arg(metavar="FILE.prom|[HOST:]PORT", help_behavior_hint="")] = ""
    """Tell Prometheus how this node is: in a file, or on a port (of this machine alone, unless a host is named)."""

    def check(self) -> None:
        """Raises if something does not fit together."""
        if (self.server is None) == (self.superlink is None):
            raise UsageError(
                "fedhsa deploy node needs one of `--server HOST:PORT`, where `fedhsa deploy grpc` listens, and "
                "`--superlink HOST:PORT`, on Flower."
            )
        for name in ("minimum_cohort", "noise_shared_by"):
            if getattr(self, name) is not None:
                _check.count(name, getattr(self, name), least=2)
        if self.data and self.agent is None:
            raise UsageError("`data` goes with `--agent FILE.py:FUNCTION`, which reads them: a problem has none.")
        if self.metrics:
            from ..deploy.prometheus import Target  # help does not wait for JAX

            Target.parse(self.metrics)

    def config(self) -> dict[str, Any]:
        """What the agent's function, its noise and its limits get."""
        names = ("clip", "noise", "epsilon", "delta", "max_rounds", "max_restarts", "exchanges")
        names += ("minimum_cohort", "noise_shared_by")
        given = {name: value for name in names if (value := getattr(self, name)) not in (None, ())}
        given |= {name: "true" for name in ("release_metrics", "secure_aggregation") if getattr(self, name)}
        return {"data": self.data, "keys": str(self.keys.absolute()), **given}
