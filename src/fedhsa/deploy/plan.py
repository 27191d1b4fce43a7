"""The plan of a federation's run, as plain values that a command line, a file or a message can contain."""

import dataclasses
import functools
import inspect
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _check, _own, tree
from ..algorithms import AbstractAlgorithm, Cost, adapt, cost, parse
from ..problems import AbstractAgent, Live, Problem, make
from ..problems._agents import stack
from ..problems._live import split_live
from ..problems.make import makers
from ..sources import AbstractControlled, AbstractStream, Silent
from .fit import MismatchError, check_fits
from .limits import Audit, Limits
from .measure import MeasuredAgent
from .privacy import Account, Privacy
from .secure import Secure, rehearse, whole
from .site import Site, agents_of
from .store import Store
from .task import Task


class AgentContext(NamedTuple):
    """The argument of a user's function that builds an agent."""

    number: int
    """The agent's number, from 0."""
    num_agents: int
    config: Mapping[str, Any]
    """The settings of this node, such as a file with data. They never leave the node."""


class _UnknownAgent(AbstractAgent):
    """A placeholder for agents that exist only at their sites."""

    source: Any
    nothing: np.ndarray

    def operator(self, theta, o, /):
        return theta

    def mean_operator(self, theta, /):
        return theta


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a run: a problem or a function that builds agents, an algorithm, and a key.

    Every site receives the same plan and builds its own agents from it: agents of a problem of the library, or agents
    that a user's function builds from data that only this site has.

    **Arguments:**

    - `problem`, `num_agents`, `dim`, `heterogeneity`, `problem_key`, `option`, `noiseless`, `iid`: a random problem of
      the library, or your own problem, like `"mine.py:build"`.
    - `agent`: instead of a problem, `"module:function"` or `"file.py:function"`. The function takes an `AgentContext`
      and returns an agent, a `Live` or a `MeasuredAgent`. Then `num_agents` and `dim` are required.
    - `algorithm`: the algorithm as text, like `"FedHSA"` or `"Averaged(FedHSA(local_steps=5))"`.
    - `step_size`, `local_steps`, `server_step`: the values of settings that the text does not give.
    - `key`, `dtype`: as for `simulate`.
    - `secure_aggregation`: whether replies are masked, so that the server learns only their sums. The algorithm is then
      wrapped in `FixedPoint(..., fixed_point_bits)`.

    Raises `ValueError` if `agent` does not name a function, or is given without `dim`.

    !!! example
        >>> plan = Plan(problem="td", num_agents=3, dim=2, option={"num_states": 5}, algorithm="LocalSA", step_size=0.1)
        >>> Plan.from_json(plan.to_json()) == plan
        True
    """

    problem: str = "quadratic"
    num_agents: int = 3
    dim: int | None = None
    heterogeneity: float | None = None
    problem_key: int = 0
    option: dict[str, Any] = dataclasses.field(default_factory=dict)
    noiseless: bool = False
    iid: bool = False
    agent: str | None = None
    algorithm: str = "FedHSA"
    step_size: float = 0.01
    local_steps: int = 10
    server_step: float = 1.0
    key: int = 0
    dtype: str = "float64"
    secure_aggregation: bool = False
    fixed_point_bits: int = 48

    def __post_init__(self):
        _check.count("num_agents", self.num_agents)
        if self.agent is not None:
            _reference(self.agent)  # raises if it is none
            if self.dim is None:
                raise ValueError(
                    "`agent` requires `dim`, the number of parameters, which the server cannot find out by itself."
                )

    def to_json(self) -> str:
        """The plan as text."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """The plan that `to_json` wrote."""
        return cls(**json.loads(text))

    def replace(self, **changes: Any) -> "Plan":
        """The plan with some values replaced."""
        return dataclasses.replace(self, **changes)

    def with_files(self, new: Callable[[_own.Reference], str]) -> "Plan":
        """The plan with every `FILE.py:NAME` replaced by `new(reference)`."""

        def moved(text: str) -> str:
            return _own.replace(text, lambda found: new(found) if found.is_file else str(found))

        agent = None if self.agent is None else moved(self.agent)
        return self.replace(problem=moved(self.problem), algorithm=moved(self.algorithm), agent=agent)

    def with_whole_paths(self) -> "Plan":
        """The plan with absolute paths, for processes that work in another folder of the same file system."""
        return self.with_files(lambda found: f"{found.path}:{found.name}")

    def told(self) -> "Plan":
        """The plan as it is sent to nodes, with the names of files instead of their paths, which are private."""
        return self.with_files(lambda found: f"{found.path.name}:{found.name}")

    @functools.cached_property
    def built_problem(self) -> Problem:
        """The problem. For a user's agents, which exist only at their sites, it has only the sizes."""
        if self.agent is not None:
            zeros = np.zeros(self.dim or 0)
            return Problem(_UnknownAgent(Silent(), np.zeros(self.num_agents)), like=zeros, theta_star=None)
        given = {"num_agents": self.num_agents, "dim": self.dim, "heterogeneity": self.heterogeneity}
        given |= {"key": self.problem_key or None}
        given = {name: value for name, value in given.items() if value is not None}
        if "num_agents" not in inspect.signature(makers(self.problem)[self.problem]).parameters:
            del given["num_agents"]  # a user's function may fix the number of agents
        problem = make(self.problem, given | self.option, noiseless=self.noiseless, iid=self.iid)
        if problem.num_agents != self.num_agents:
            raise ValueError(
                f"`num_agents` must be {problem.num_agents}, as many as {self.problem} makes, got {self.num_agents}."
            )
        return problem

    @property
    def theta_star(self) -> np.ndarray | None:
        """The root, where it is known."""
        return self.built_problem.theta_star

    @functools.cached_property
    def method(self) -> AbstractAlgorithm:
        """The algorithm."""
        defaults = {"step_size": self.step_size, "local_steps": self.local_steps, "server_step": self.server_step}
        algorithm = parse(self.algorithm, self.built_problem, **defaults)
        if self.secure_aggregation:
            algorithm = whole(algorithm, self.fixed_point_bits)
        adapt(algorithm, self.built_problem)  # raises if it does not fit
        return algorithm

    @property
    def title(self) -> str:
        """The problem and its sizes, for figures."""
        name = _own.title(self.problem) if self.agent is None else "private agents"
        return f"{name}: $M = {self.num_agents}$, $d = {self.built_problem.dim}$, $H = {self.method.block_length}$"

    @functools.cached_property
    def cost(self) -> Cost:
        """The cost of a round for an agent."""
        return cost(self.built_problem, self.method)

    @functools.cached_property
    def task(self) -> Task:
        """The task on which server and sites must agree."""
        example = None if self.agent is not None else tree.take(self.built_problem.flat_agents, 0)
        adapted, theta = adapt(self.method, self.built_problem), self.built_problem.start
        named = self._agents_as_text(), self.built_problem.names, self.secure_aggregation
        return Task(adapted, self.num_agents, theta, self.key, self.dtype, example, *named)

    def _agents_as_text(self) -> str:
        """Identifies the agents as text. Of a user's function it has only the name: paths differ between nodes."""
        if self.agent is not None:
            return self.agent.rpartition(":")[2]
        names = ("heterogeneity", "problem_key", "option", "noiseless", "iid")
        family = _own.replace(self.problem, lambda found: found.name)
        return json.dumps({"problem": family} | {name: getattr(self, name) for name in names}, sort_keys=True)

    def site(
        self,
        numbers: Sequence[int],
        store: Store,
        run: str,
        config: Mapping[str, Any] | None = None,
        audit: Audit | None = None,
    ) -> Site:
        """Returns the site of these agents, with its own settings and limits, and its audit log."""
        config = config or {}
        agents, streams, measured = self._agents(numbers, config)
        privacy = Privacy.from_config(config)
        # Next to the folders of the runs: one account for all of them.
        path = store.path.parent.parent / "privacy.account"
        account = None if privacy is None else Account(Store(path), privacy, numbers)
        secure = self._secure(numbers, config)
        withhold = (privacy is not None or secure is not None) and not _is_set(config, "release_metrics")
        limits = Limits.from_config(config)
        return Site(self.task, agents, numbers, store, run, streams, account, measured, withhold, limits, audit, secure)

    def _secure(self, numbers: Sequence[int], config: Mapping[str, Any]) -> Secure | None:
        """The site's part in secure aggregation; raises if the site requires it and the plan does not use it."""
        if self.secure_aggregation:
            return Secure.from_config(config, numbers[0])
        if _is_set(config, "secure_aggregation"):
            raise MismatchError(
                "this site sends replies under masks alone (`--secure-aggregation`), and the run is without"
            )
        return None

    def rehearse(self, config: Mapping[str, Any]) -> None:
        """Builds the first agent, if its data are on this machine, so that errors appear before the start."""
        if self.agent is not None:
            self._agents([0], config)

    def _agents(
        self, numbers: Sequence[int], config: Mapping[str, Any]
    ) -> tuple[AbstractAgent, list[AbstractStream] | None, list[MeasuredAgent | None] | None]:
        if self.agent is None:
            return *agents_of(self.built_problem, numbers), None
        build = load_agent(self.agent)
        contexts = [AgentContext(number, self.num_agents, _with_agent_number(config, number)) for number in numbers]
        with _own.told(f"`agent`: {self.agent} raised an error"):
            made = [build(context) for context in contexts]
        measured = [agent if isinstance(agent, MeasuredAgent) else None for agent in made]
        made = [agent.agent if isinstance(agent, MeasuredAgent) else agent for agent in made]
        for agent in made:
            if not isinstance(agent, AbstractAgent | Live):
                raise TypeError(
                    f"`agent`: {self.agent} must return an `AbstractAgent`, a `Live` or a `MeasuredAgent`, got "
                    f"{_own.in_words(agent)}."
                )
            if isinstance(agent, AbstractAgent) and isinstance(agent.source, AbstractControlled):
                raise TypeError(
                    f"`agent`: {self.agent} must return an agent whose chain does not depend on the parameter: the "
                    "server cannot know that it does. Use a problem of the library, or `federate`."
                )
        agents, streams = split_live(made)
        stacked = stack(agents, AbstractAgent)
        check_fits(stacked, self.dim or 0, self.agent, None if streams is None else streams[0].like)
        return stacked, streams, measured


def with_keys(plan: Plan, config: Mapping[str, Any] | None, home: str | os.PathLike) -> dict[str, Any]:
    """Returns the settings of sites that one person starts, with keys made in `home` if the plan requires keys."""
    config = dict(config or {})
    if plan.secure_aggregation and not config.get("keys"):
        config["keys"] = rehearse(pathlib.Path(home) / "keys", plan.num_agents)
    return config


def _is_set(config: Mapping[str, Any], name: str) -> bool:
    return str(config.get(name, "")).lower() in ("true", "yes", "1")


def _with_agent_number(config: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The settings with the agent's number filled into the name of its data."""
    data = config.get("data")
    return {**config, "data": data.replace("{number}", str(number))} if isinstance(data, str) else dict(config)


def _reference(text: str) -> _own.Reference:
    found = _own.reference(text)
    if found is None:
        raise ValueError(f"`agent` must be MODULE:FUNCTION or FILE.py:FUNCTION, like `my_site:build`, got {text!r}.")
    return found


def load_agent(text: str) -> Callable[[AgentContext], Any]:
    """The function that builds agents, of `module:function` or `file.py:function`."""
    build = _own.load("agent", _reference(text))
    if not callable(build) or isinstance(build, type):
        raise ValueError(
            f"`agent`: {text} must be a function that takes an `AgentContext`, got {_own.in_words(build)}."
        )
    return build
