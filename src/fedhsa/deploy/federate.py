"""`federate`: the run of `simulate` with one seed, by messages between a server and sites."""

import contextlib
import dataclasses
import functools
import os
import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import _check, tree
from .._describe import digest
from .._types import SeedLike
from ..algorithms import AbstractAlgorithm, adapt, cost
from ..engine import Result
from ..engine.simulate import check_length
from ..problems import Problem
from .measure import Measure, MeasuredAgent
from .memory import Faults, MemoryTransport
from .missing import Missing
from .outcome import conduct
from .plan import Plan, with_keys
from .secure import Secure, rehearse, whole
from .server import FederationError, Server
from .site import Site, agents_of, in_words, public_reason
from .store import Store
from .task import Task


def in_memory(
    plan: Plan,
    folder: str | os.PathLike,
    *,
    missing: Missing | None = None,
    faults: Faults | None = None,
    watch: Callable[[dict[str, Any]], None] | None = None,
    config: Mapping[str, Any] | None = None,
    reply_bound: float | None = None,
) -> Server:
    """Returns a `Server` whose sites are in this process, one for each agent of the plan.

    **Arguments:**

    - `plan`: the plan of the run.
    - `folder`: the folder for the states of the server and the sites.
    - `config`: settings that sites receive in addition to the plan, like those of a node. Default: none.
    - `faults`: the faults of messages and sites. Default: none.
    - `missing`, `watch`, `reply_bound`: as for `Server`.

    !!! example
        >>> import tempfile
        >>> plan = Plan(problem="quadratic", num_agents=2, dim=2, step_size=0.1, local_steps=2)
        >>> server = in_memory(plan, tempfile.mkdtemp())
        >>> server.run(3).round
        3
    """
    config = with_keys(plan, config, folder)

    site = functools.partial(plan.site, config=config)
    sites = [[number] for number in range(plan.num_agents)]
    options = {"missing": missing, "theta_star": plan.theta_star, "watch": watch, "reply_bound": reply_bound}
    return _server(plan.task, site, sites, pathlib.Path(folder), faults, sync=False, folder=folder, **options)


def _server(
    task: Task,
    make: Callable[[Sequence[int], Store, str], Site],
    sites: Sequence[Sequence[int]],
    home: pathlib.Path,
    faults: Faults | None,
    sync: bool,
    **more: Any,
) -> Server:
    """Returns a server whose sites are in this process, are built at their first message and save to `home`."""

    def begin(site: int) -> Site:
        store = Store(home / "sites" / server.run_id / f"{site}.state", sync)
        try:
            return make(sites[site], store, server.run_id)
        except Exception as error:  # the user's own code and data, on the user's own machine
            public_reason(error)
            whose = ", ".join(map(str, sites[site]))
            raise FederationError(f"Agent {whose} could not be built: {in_words(error)}") from error

    server = Server(task, MemoryTransport(begin, len(sites), faults), sites, **more)
    return server


def federate(
    problem: Problem,
    algorithm: AbstractAlgorithm,
    *,
    rounds: int,
    key: SeedLike = 0,
    theta: Any = None,
    dtype: str = "float64",
    sites: Sequence[Sequence[int]] | None = None,
    missing: Missing | None = None,
    folder: str | os.PathLike | None = None,
    resume: bool = False,
    faults: Faults | None = None,
    watch: Callable[[dict[str, Any]], None] | None = None,
    measures: Sequence[Measure | None] | None = None,
    reply_bound: float | None = None,
    secure_aggregation: bool = False,
) -> Result:
    """Runs `algorithm` on `problem` by messages, as over a network, with all sites in this process.

    The result is that of `simulate` with one seed, also for live agents, whose sites step the environments. The
    function shows what a federation does, and what happens when a process dies; for speed use `simulate`.

    **Arguments:**

    - `problem`, `algorithm`, `rounds`, `key`, `theta`, `dtype`: as for `simulate`.
    - `sites`: the numbers of each site's agents. Default: one site for each agent.
    - `missing`: the policy for agents that do not answer. Default: `Missing()`.
    - `folder`: the folder for the states of server and sites and for the server's log. Default: a temporary folder.
    - `resume`: whether to continue the run in `folder`; `rounds` may be larger than before.
    - `faults`: the faults of messages and sites. Default: none.
    - `watch`: a function that is called with every event.
    - `measures`: for each agent, the function with which its site measures a parameter on its own data, as in
      `MeasuredAgent`. The records of the result contain the averages by name, and each agent's numbers under
      `..._by_agent`.
    - `reply_bound`: the largest norm that an agent's reply may have; an agent that exceeds it counts as unable to
      answer. Default: no bound.
    - `secure_aggregation`: whether replies are masked, so that the server learns only their sums. This runs
      `FixedPoint(algorithm)`, and the sites do not send their measurements.

    **Returns:** a `Result` with one seed.

    Raises `ValueError` if an argument does not fit the problem, and `FederationError` if the run cannot continue.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
        >>> method = fedhsa.FedHSA(0.05, local_steps=5)
        >>> result = fedhsa.deploy.federate(problem, method, rounds=4, faults=fedhsa.deploy.Faults(0.3, seed=1))
        >>> bool(abs(result.theta - fedhsa.simulate(problem, method, rounds=4).theta).max() < 1e-12)
        True
    """
    _check.count("rounds", rounds)
    if resume and folder is None:
        raise ValueError("`resume=True` requires `folder`, the folder of the run to continue.")
    algorithm = whole(algorithm) if secure_aggregation else algorithm
    adapted = adapt(algorithm, problem)
    check_length(problem, rounds * algorithm.block_length)
    sites = [[i] for i in range(problem.num_agents)] if sites is None else sites
    start = problem.start if theta is None else tree.ravel_like("theta", theta, problem.like)
    example = tree.take(problem.flat_agents, 0)
    named = digest(problem, "problem"), problem.names, secure_aggregation
    task = Task(adapted, problem.num_agents, start, key, dtype, example, *named)
    if measures is not None and len(measures) != problem.num_agents:
        raise ValueError(f"`measures` must have one entry for each of the {problem.num_agents} agents.")
    measured = None if measures is None else [None if one is None else MeasuredAgent(None, one) for one in measures]
    with tempfile.TemporaryDirectory() if folder is None else contextlib.nullcontext(folder) as home:
        keys = rehearse(pathlib.Path(home) / "keys", problem.num_agents) if secure_aggregation else None

        def site(numbers: Sequence[int], store: Store, run: str) -> Site:
            some, streams = agents_of(problem, numbers)
            own = None if measured is None else [measured[number] for number in numbers]
            secure = Secure.from_config({"keys": keys}, numbers[0]) if secure_aggregation else None
            withhold = secure_aggregation
            return Site(task, some, numbers, store, run, streams, measured=own, withhold=withhold, secure=secure)

        options = {"missing": missing, "theta_star": problem.theta_star, "watch": watch, "reply_bound": reply_bound}
        server = _server(task, site, sites, pathlib.Path(home), faults, folder is not None, folder=folder, **options)
        found = conduct(server, rounds, cost(problem, algorithm), resume)
    return dataclasses.replace(found, theta=problem.unravel(found.theta))
