"""The settings of the long-running commands `fedhsa deploy superlink` and `fedhsa deploy node`."""

import dataclasses
import pathlib
from typing import Annotated, Any

import tyro

from .errors import UsageError
from .settings import AbstractFlags, flag
from .usage import check_counts


@dataclasses.dataclass(frozen=True)
class SuperlinkSettings(AbstractFlags):
    """Runs Flower's SuperLink, which only this machine can reach, and in front of it a
    gate, which the nodes can reach. The gate forwards the requests that nodes need,
    if the node's certificate is in the folder `nodes` of the keys, and refuses all
    others. Adding a certificate there admits the node within a second, and removing
    it excludes the node.

    Examples:
      fedhsa deploy superlink --keys server --listen 0.0.0.0:8000
    a run, from a second terminal:
      fedhsa deploy flower --superlink 127.0.0.1:8001 --keys server --rounds 50

    Clocks: Flower refuses a node whose clock is more than 5 seconds ahead of this
    machine's, or more than 5 minutes behind it.
    """

    command = "deploy superlink"

    keys: Annotated[pathlib.Path, tyro.conf.arg(metavar="FOLDER")] = pathlib.Path("server")
    """The server's folder of `fedhsa deploy keys`."""
    listen: Annotated[str, tyro.conf.arg(metavar="HOST:PORT")] = "0.0.0.0:8000"
    """The address on which the gate listens."""
    inner_port: Annotated[int, tyro.conf.arg(metavar="PORT")] = 8001
    """The SuperLink's port, open only on this machine; 0 for any free port."""
    logs: Annotated[pathlib.Path | None, flag("FOLDER")] = None
    """The folder for the SuperLink's log."""


@dataclasses.dataclass(frozen=True)
class NodeSettings(AbstractFlags):
    """Runs a node until it is stopped: it connects to the server, takes part in the
    server's runs, and reconnects when the connection or the server was lost. The
    certificate in its folder names its agent. A node runs no code that the server
    sends: your own agent or algorithm is given on this command line.

    Examples:
      fedhsa deploy node --server 192.0.2.7:8000 --keys node-0
      fedhsa deploy node --server 192.0.2.7:8000 --keys node-0 \\
          --agent site.py:build --data my.csv
      fedhsa deploy node --superlink 192.0.2.7:8000 --keys node-0    (on Flower)

    The folder also receives the node's state, its log site.log, and audit.jsonl,
    which lists everything that the node has sent; `fedhsa deploy status node-0`
    shows a summary. No server can change this node's noise and limits.
    """

    command = "deploy node"

    keys: Annotated[pathlib.Path, tyro.conf.arg(metavar="FOLDER")] = pathlib.Path(".")
    """The node's folder of `fedhsa deploy keys`."""
    server: Annotated[str | None, flag("HOST:PORT")] = None
    """The server of `fedhsa deploy grpc`."""
    superlink: Annotated[str | None, flag("HOST:PORT")] = None
    """The gate of `fedhsa deploy superlink`, or a SuperLink of Flower."""
    state: Annotated[pathlib.Path | None, flag("FOLDER", hint="(default: that of the keys)")] = None
    """The folder for the node's state, its log and its audit log."""
    agent: Annotated[str | None, flag("FILE.py:FUNCTION")] = None
    """The function (also MODULE:FUNCTION) that builds this node's agent from its own data."""
    data: Annotated[str, flag("PATH")] = ""
    """The value of `data` that this function receives, such as a file; {number} stands for the agent's number."""
    allow: Annotated[tuple[str, ...], flag("FILE.py:NAME")] = ()
    """Further code on this machine that a run may name, such as your own algorithm."""
    plan: Annotated[pathlib.Path | None, flag("FILE")] = None
    """Take part only in runs of this plan: a JSON file, such as runs/RUN/plan.json of an earlier run."""
    clip: Annotated[float | None, flag("NORM")] = None
    """With noise: clip every reply to this norm."""
    noise: Annotated[float | None, flag("MULTIPLIER")] = None
    """Add Gaussian noise to every reply. Its standard deviation is this multiple of twice the clip."""
    epsilon: Annotated[float | None, flag("EPSILON")] = None
    """With noise: the privacy budget. The node stops answering before it is exceeded."""
    delta: Annotated[float | None, flag("DELTA", hint="(default: 1e-5)")] = None
    """With noise: the probability with which epsilon may not hold."""
    noise_shared_by: Annotated[int | None, flag("K")] = None
    """With noise and secure aggregation: add 1/K of the variance, so that a sum over K such agents has all of it."""
    secure_aggregation: bool = False
    """Answer only in runs with secure aggregation, where replies are masked and the server learns only sums."""
    minimum_cohort: Annotated[int | None, flag("K", hint="(default: all agents)")] = None
    """With secure aggregation, if a run may skip absent sites: answer only if at least K sites take part."""
    release_metrics: bool = False
    """With noise or secure aggregation: also send this site's measurements on its data, without any protection."""
    max_rounds: Annotated[int | None, flag("T")] = None
    """The largest number of rounds in which the node takes part, over all runs together."""
    max_restarts: Annotated[int | None, flag("N", hint="(default: 100)")] = None
    """The largest number of times that the node restarts a round."""
    exchanges: Annotated[tuple[str, ...], flag("NAME", hint="(default: all)")] = ()
    """Answer only these exchanges, like operator and delta; `measure` stands for this site's measurements."""
    sync: bool = True
    """Wait for the disk before every answer, so that the state survives a loss of power; --no-sync is faster."""
    metrics: Annotated[str, flag("FILE.prom|[HOST:]PORT")] = ""
    """Write the node's state for Prometheus to a file, or serve it on a port (only on this machine without a host)."""

    def check(self) -> None:
        """Raises `UsageError` if the settings contradict each other."""
        if (self.server is None) == (self.superlink is None):
            raise UsageError(
                "fedhsa deploy node needs either `--server HOST:PORT`, the address of `fedhsa deploy grpc`, or "
                "`--superlink HOST:PORT`, on Flower."
            )
        check_counts(self, "minimum_cohort", "noise_shared_by", least=2)
        if self.data and self.agent is None:
            raise UsageError("`data` requires `--agent FILE.py:FUNCTION`, the function that reads the data.")
        if self.metrics:
            from ..deploy.prometheus import Target  # `--help` must not import JAX

            Target.parse(self.metrics)

    def config(self) -> dict[str, Any]:
        """The settings for the agent's function, its noise and its limits."""
        names = ("clip", "noise", "epsilon", "delta", "max_rounds", "max_restarts", "exchanges")
        names += ("minimum_cohort", "noise_shared_by")
        given = {name: value for name in names if (value := getattr(self, name)) not in (None, ())}
        given |= {name: "true" for name in ("release_metrics", "secure_aggregation") if getattr(self, name)}
        return {"data": self.data, "keys": str(self.keys.absolute()), **given}
