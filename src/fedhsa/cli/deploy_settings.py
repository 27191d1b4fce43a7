"""The settings of `fedhsa deploy` and of each of its commands."""

import dataclasses
import functools
import pathlib
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tyro

from .._check import DTYPES
from .errors import UsageError
from .settings import AbstractFlags, AbstractSettings, TrackFlags, flag, out_folder
from .usage import check_counts, check_name, check_number

if TYPE_CHECKING:  # `--help` must not import JAX
    from ..deploy import Missing, Plan

_FILES = """\
The output folder receives the files of `fedhsa run` (curves.png, curves.pdf,
curves.csv, curves.npz, manifest.json), log.jsonl (a log of events, one JSON
object per line) and server.state (the checkpoint; --resume continues from it).
If sites measure the parameter on their own data (see
docs/tutorials/three-sites.md), it also receives metrics.csv, metrics.png and
metrics.pdf.
`fedhsa deploy status` shows the progress of a run, also while it runs."""
_NO_MASKS = (
    "`secure_aggregation` hides nothing on stock SuperNodes, which run the code that the server sends. Use "
    "`fedhsa deploy node` and `--keys` instead."
)


@dataclasses.dataclass(frozen=True)
class AbstractDeploySettings(TrackFlags, AbstractSettings):
    """The settings that all runs by messages have."""

    files = _FILES
    nodes_decide: ClassVar[bool] = False
    """Whether each node, and not the person who starts the run, sets noise and limits."""

    algorithm: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("FedHSA",)
    """The algorithm, like FedHSA, 'Averaged(FedHSA)' or mine.py:HalfHSA; `fedhsa list` shows all algorithms."""
    num_agents: Annotated[int | None, tyro.conf.arg(metavar="M")] = 3
    """Number of agents."""
    agent: Annotated[str | None, flag("FILE.py:FUNCTION")] = None
    """Instead of a problem: a function (also MODULE:FUNCTION) that builds a node's agent from its own data."""
    data: Annotated[str, flag("PATH")] = ""
    """The value of `data` that this function receives, such as a file; {number} stands for the agent's number."""
    rounds: Annotated[int, tyro.conf.arg(metavar="T")] = 20
    """Total number of rounds."""
    dtype: Annotated[str, tyro.conf.arg(metavar="|".join(DTYPES))] = DTYPES[0]
    """The precision."""
    missing: Annotated[str, tyro.conf.arg(metavar="wait|skip|fail")] = "wait"
    """If an agent does not answer: wait for it, skip it in this round, or fail."""
    patience: Annotated[float | None, flag("SECONDS", hint="(default: 600 to wait, else 60)")] = None
    """How long an exchange may take before an agent counts as missing."""
    at_least: int = 1
    """With skip: the number of agents that a round needs."""
    reply_bound: Annotated[float | None, flag("NORM")] = None
    """The largest norm of a reply that is accepted; an agent that exceeds it counts as unable to answer."""
    clip: Annotated[float | None, flag("NORM")] = None
    """With noise: clip every reply to this norm."""
    noise: Annotated[float | None, flag("MULTIPLIER")] = None
    """Add Gaussian noise to every reply. Its standard deviation is this multiple of twice the clip."""
    epsilon: Annotated[float | None, flag("EPSILON")] = None
    """The privacy budget, at which sites stop answering. Without `--noise`, the noise is chosen to last all rounds."""
    delta: Annotated[float | None, flag("DELTA", hint="(default: 1e-5)")] = None
    """With noise: the probability with which epsilon may not hold."""
    noise_shared_by: Annotated[int | None, flag("K")] = None
    """With noise and secure aggregation: each agent adds 1/K of the variance; a sum over K agents has all of it."""
    secure_aggregation: bool = False
    """Mask the replies, so that the server learns only their sum, in which the masks cancel."""
    fixed_point_bits: Annotated[int, tyro.conf.arg(metavar="B")] = 48
    """With secure aggregation: number of fractional bits of a reply; more bits are finer, fewer allow larger values."""
    minimum_cohort: Annotated[int | None, flag("K", hint="(default: all agents)")] = None
    """With secure aggregation and skip: a site answers only if at least K sites take part in the round."""
    release_metrics: bool = False
    """With noise or masks: also send the sites' measurements on their data, without any protection."""
    metrics: Annotated[str, flag("FILE.prom|[HOST:]PORT")] = ""
    """Write the state of the run to a file after every round, or serve it on a port, in the format of Prometheus."""
    resume: bool = False
    """Continue from the checkpoint in the output folder."""

    def _check_own(self) -> None:
        from ..deploy.missing import ACTIONS
        from ..deploy.privacy import SETTINGS, Privacy
        from ..deploy.prometheus import Target

        self._check_track()
        check_counts(self, "rounds")
        check_name("dtype", self.dtype, DTYPES)
        check_number("patience", self.patience)
        for name in (*SETTINGS, "reply_bound"):
            check_number(name, getattr(self, name), above=0.0)
        check_name("missing", self.missing, ACTIONS)
        if self.data and self.agent is None:
            raise UsageError("`data` requires `--agent FILE.py:FUNCTION`, the function that reads the data.")
        if self.release_metrics and not self.secure_aggregation and not any(getattr(self, name) for name in SETTINGS):
            raise UsageError(
                "`release_metrics` requires `--noise`, `--epsilon` or `--secure-aggregation`: without them, metrics "
                "are always sent."
            )
        check_counts(self, "minimum_cohort", "noise_shared_by", least=2)
        for name in ("minimum_cohort", "noise_shared_by"):
            if getattr(self, name) is not None and not self.secure_aggregation:
                raise UsageError(f"`{name}` requires `--secure-aggregation`.")
        if self.metrics:
            Target.parse(self.metrics)
        if self.at_least != 1 and self.missing != "skip":
            raise UsageError("`at_least` requires `--missing skip`: otherwise every round needs all agents.")
        Privacy.from_config(self.config_of_sites())
        plan, policy = self.plan(), self.policy()
        if self.secure_aggregation:
            from ..deploy.secure import check

            check(plan.task, policy, plan.num_agents)
            if self.missing == "skip" and self.minimum_cohort is None and not self.nodes_decide:
                raise UsageError(
                    "`missing` can be 'skip' with `--secure-aggregation` only if sites may answer while others are "
                    "absent. Set the number of sites that must be present, `--minimum-cohort K`; "
                    "docs/deploy/secure-aggregation.md explains what the server can then learn."
                )

    def check_complete(self) -> None:
        if len(self.algorithm) != 1 or len(self.step_size) != 1:
            raise UsageError("`algorithm` and `step_size` must be one each: a federation runs one algorithm at a time.")

    def config_of_sites(self) -> dict[str, Any]:
        """The settings that sites receive in addition to the plan, unless they have their own."""
        from ..deploy.privacy import SETTINGS

        names = (*SETTINGS, "minimum_cohort", "noise_shared_by")
        given = {name: value for name in names if (value := getattr(self, name)) is not None} | self._calibrated
        if self.release_metrics:
            given["release_metrics"] = "true"
        here = not self.nodes_decide and self.data and pathlib.Path(self.data.replace("{number}", "0")).exists()
        data = str(pathlib.Path(self.data).absolute()) if here else self.data  # other processes have other folders
        return {"data": data, **given}

    @functools.cached_property
    def _calibrated(self) -> dict[str, float]:
        """The noise that `--epsilon` alone implies, with a reserve of a tenth for rounds that are restarted."""
        if self.epsilon is None or self.noise is not None:
            return {}
        from ..deploy.privacy import Privacy

        given = {name: value for name in ("clip", "delta") if (value := getattr(self, name)) is not None}
        replies = self.rounds * len(self.plan().method.exchanges)
        found = Privacy.calibrated(self.epsilon, -(-11 * replies // 10), **given)
        return {"clip": found.clip, "noise": found.noise, "epsilon": found.epsilon or 0.0}

    def _check_nodes_own(self) -> None:
        """Raises if a setting is given that each node sets for itself."""
        from ..deploy.privacy import SETTINGS

        for name in ("data", "release_metrics", "minimum_cohort", "noise_shared_by", *SETTINGS):
            if getattr(self, name):
                raise UsageError(f"`{name}` is each node's own setting: give it to `fedhsa deploy node`.")

    def policy(self) -> "Missing":
        from ..deploy import Missing

        return Missing(self.missing, self.patience, self.at_least)

    def plan(self) -> "Plan":
        """The plan that every site receives."""
        from ..deploy import Plan
        from . import memory

        if self.agent is None:
            sizes = {name: getattr(self, name) for name in ("num_agents", "dim") if getattr(self, name) is not None}
            memory.check_problem(self.problem, sizes | self.option)
        names = {field.name for field in dataclasses.fields(Plan)} - {"algorithm", "step_size"}
        given: dict[str, Any] = {name: getattr(self, name) for name in names}
        plan = Plan(**given, algorithm=self.algorithm[0], step_size=self.step_size[0])
        try:
            _ = plan.method
        except TypeError as error:  # an algorithm that does not fit the problem, or a wrapper the algorithm
            raise UsageError(str(error)) from error
        return plan

    @property
    def folder(self) -> pathlib.Path:
        """The folder for the results."""
        return pathlib.Path("runs", *self.command.split()) if self.out is None else self.out


@dataclasses.dataclass(frozen=True)
class MemorySettings(AbstractDeploySettings):
    """Runs a federation inside this process, with the same server, sites and messages
    as on a network. It shows what they do, and what happens when something fails.

    Examples:
      fedhsa deploy memory
      fedhsa deploy memory --problem td --step-size 0.05 --faults 0.3
      fedhsa deploy memory --agent examples/private_series/site.py:build --dim 4 \\
          --data examples/private_series/data/{number}.csv
    """

    command = "deploy memory"

    faults: Annotated[float, tyro.conf.arg(metavar="0..1")] = 0.0
    """The probability that a message is lost, late, repeated or garbled, or that its site is killed."""
    out: Annotated[pathlib.Path | None, out_folder("runs/deploy/memory")] = None
    """The folder for the results."""

    def _check_own(self) -> None:
        super()._check_own()
        check_number("faults", self.faults, least=0.0, most=0.95)


@dataclasses.dataclass(frozen=True)
class RaySettings(AbstractDeploySettings):
    """Runs a federation on Ray: agents are divided among actors, long-lived processes
    that may be on other machines of a trusted cluster. Rounds take milliseconds.

    Examples:
      fedhsa deploy ray --num-agents 1000 --actors 4
      fedhsa deploy ray --address auto --out /shared/run     (a running cluster)

    An actor that dies is restarted and continues from the state that it saved in
    the output folder. On a cluster, all machines must share this folder.
    """

    command = "deploy ray"

    address: str = "local"
    """local: start Ray for this run; auto or HOST:PORT: use a running cluster."""
    actors: Annotated[int | None, flag("N", hint="(default: one per core)")] = None
    """Number of processes that share the agents."""
    out: Annotated[pathlib.Path | None, out_folder("runs/deploy/ray")] = None
    """The folder for the results."""

    def _check_own(self) -> None:
        super()._check_own()
        check_counts(self, "actors")


@dataclasses.dataclass(frozen=True)
class GrpcSettings(AbstractDeploySettings):
    """Runs a federation over gRPC: this process is the server, and the nodes (`fedhsa
    deploy node --server HOST:PORT`) connect to it over TLS. Each node has its own
    certificate, whose name is its agent's. An exchange takes milliseconds.

    Examples:
      fedhsa deploy grpc --listen 0.0.0.0:8000 --keys server --num-agents 3 \\
          --problem td --step-size 0.05 --rounds 100
      agents that each node builds from its own data (the nodes were started
      with `fedhsa deploy node --agent site.py:build --data my.csv ...`):
        fedhsa deploy grpc --listen 0.0.0.0:8000 --keys server --num-agents 3 \\
            --agent site.py:build --dim 4

    The run begins when the nodes are connected; they and the server may be started
    in any order. All of them may be killed and started again, the server with
    --resume. Nodes stay connected for the next run. Each node sets its own code,
    data, noise and limits.
    """

    command, nodes_decide = "deploy grpc", True

    listen: Annotated[str, tyro.conf.arg(metavar="HOST:PORT")] = "127.0.0.1:8000"
    """The address to listen on; 0.0.0.0 stands for all addresses of this machine."""
    keys: Annotated[pathlib.Path, tyro.conf.arg(metavar="FOLDER")] = pathlib.Path("server")
    """The server's folder of `fedhsa deploy keys`; its folder `nodes` lists the nodes that may take part."""
    sync: bool = True
    """Wait for the disk after every round, so that the checkpoint survives a loss of power; --no-sync is faster."""
    out: Annotated[pathlib.Path | None, out_folder("runs/deploy/grpc")] = None
    """The folder for the results."""

    def _check_own(self) -> None:
        from ..deploy.address import split_address

        super()._check_own()
        split_address("listen", self.listen)
        self._check_nodes_own()


@dataclasses.dataclass(frozen=True)
class DemoSettings(AbstractDeploySettings):
    """Runs a real federation on this machine: a server and one node per agent, with
    encryption and keys, which are started for this run and removed after it. No
    other machine is contacted. It takes seconds over gRPC, and about a minute on
    Flower, most of it for the start.

    Examples:
      fedhsa deploy demo
      fedhsa deploy demo --transport flower
      fedhsa deploy demo --problem td --step-size 0.05 --num-agents 4 --rounds 10
      fedhsa deploy demo --agent examples/private_series/site.py:build --dim 4 \\
          --data examples/private_series/data/{number}.csv
    """

    command = "deploy demo"

    rounds: Annotated[int, tyro.conf.arg(metavar="T")] = 5
    """Total number of rounds."""
    step_size: Annotated[tuple[float, ...], tyro.conf.arg(metavar="ETA")] = (0.02,)
    """The step size."""
    local_steps: Annotated[int, tyro.conf.arg(metavar="H")] = 30
    """Local steps per round, for algorithms that have them."""
    transport: Annotated[str, tyro.conf.arg(metavar="grpc|flower")] = "grpc"
    """The transport of the messages: gRPC, or Flower's SuperLink behind a gate."""
    stock: bool = False
    """Use Flower's own SuperNodes, which start a process for every message: a round takes about 15 seconds."""
    verbose: bool = False
    """Show the complete output of Flower, or of each node."""
    out: Annotated[pathlib.Path | None, out_folder("runs/deploy/demo")] = None
    """The folder for the results."""

    def _check_own(self) -> None:
        super()._check_own()
        check_name("transport", self.transport, ("grpc", "flower"))
        if self.stock and self.transport != "flower":
            raise UsageError("`stock` requires `--transport flower`: stock SuperNodes are a part of Flower.")
        if self.stock and self.secure_aggregation:
            raise UsageError(_NO_MASKS)


@dataclasses.dataclass(frozen=True)
class FlowerSettings(AbstractDeploySettings):
    """Writes or runs a standard Flower app for any problem and algorithm, or for your
    own agents, each of which its node builds from data that stay there.

    Examples:
      write the app, to run it yourself with `flwr run my-app ...`:
        fedhsa deploy flower --write my-app --rounds 50
      run it on your federation, on the machine of `fedhsa deploy superlink`:
        fedhsa deploy flower --superlink 127.0.0.1:8001 --keys server --rounds 50
      agents that each node builds from its own data (the nodes were started
      with `fedhsa deploy node --agent site.py:build --data my.csv ...`):
        fedhsa deploy flower --superlink ... --agent site.py:build --dim 4
      run it on a federation of stock SuperNodes, without signatures:
        fedhsa deploy flower --superlink 192.0.2.7:8000 --root-certificates ca.crt

    The results are written to `--out` on the SuperLink's machine. This path is
    relative to the current folder with `--keys`, and otherwise to the folder in
    which the SuperLink was started.
    """

    command, nodes_decide = "deploy flower", True

    write: Annotated[pathlib.Path | None, flag("DIR")] = None
    """Only write the app to this folder."""
    superlink: Annotated[str | None, flag("HOST:PORT")] = None
    """Run the app on the federation of this SuperLink."""
    keys: Annotated[pathlib.Path | None, flag("FOLDER")] = None
    """The server's folder of `fedhsa deploy keys`, on this machine: requests are signed, and replies are checked."""
    root_certificates: Annotated[pathlib.Path | None, flag("FILE")] = None
    """With stock SuperNodes: the authority that certifies the SuperLink, such as ca.crt of `fedhsa deploy keys`."""
    insecure: bool = False
    """With stock SuperNodes: talk to the SuperLink without encryption."""
    state: str = "~/.fedhsa/sites"
    """With stock SuperNodes: the folder on each node's machine for the state of its agent."""
    verbose: bool = False
    """Show the complete output of Flower."""
    out: Annotated[pathlib.Path | None, out_folder("runs/deploy/flower")] = None
    """The folder for the results."""

    def check_complete(self) -> None:
        from ..deploy.address import split_address

        super().check_complete()
        if (self.write is None) == (self.superlink is None):
            raise UsageError(
                "fedhsa deploy flower needs one of `--write DIR` and `--superlink HOST:PORT`. To try it on this "
                "machine, use `fedhsa deploy demo`."
            )
        if self.superlink is None:
            for name in ("keys", "insecure", "root_certificates", "verbose"):
                if getattr(self, name):
                    raise UsageError(f"`{name}` has no effect with `--write`: leave it out.")
            if self.secure_aggregation:
                raise UsageError(_NO_MASKS)
            return
        split_address("superlink", self.superlink)
        if sum([self.keys is not None, self.root_certificates is not None, self.insecure]) != 1:
            raise UsageError(
                "`superlink` requires `--keys FOLDER`, the server's folder of `fedhsa deploy keys`. With stock "
                "SuperNodes, give `--root-certificates ca.crt` or `--insecure` instead."
            )
        if self.keys is None and self.secure_aggregation:
            raise UsageError(_NO_MASKS)
        if self.keys is not None:
            self._check_nodes_own()


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


@dataclasses.dataclass(frozen=True)
class StatusSettings(AbstractFlags):
    """Shows the progress of a run, during the run or afterwards, from its output
    folder. Given a node's folder, shows from the node's own log what it has sent
    and refused.

    Examples:
      fedhsa deploy status
      fedhsa deploy status runs/deploy/demo --json
      fedhsa deploy status node-0
    """

    command = "deploy status"

    folder: Annotated[tyro.conf.Positional[pathlib.Path | None], flag("FOLDER", hint="(the latest)")] = None
    """The output folder of the run, or a node's folder. Default: the run in runs/deploy that changed last."""
    json: bool = False
    """Print JSON."""


COMMANDS: dict[str, type[AbstractFlags]] = {
    kind.command.split()[1]: kind
    for kind in (
        DemoSettings,
        MemorySettings,
        RaySettings,
        GrpcSettings,
        FlowerSettings,
        SuperlinkSettings,
        NodeSettings,
        StatusSettings,
    )
}
"""The settings of the commands that `deploy.py` runs."""
