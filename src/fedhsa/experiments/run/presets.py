"""Every experiment with its settings: those stated in the paper, and those in its authors' public scripts."""

import dataclasses
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

from ... import _check
from ...problems import PROBLEMS
from .. import PRESETS
from ..paper.comparison import Comparison
from ..paper.sweep import AgentSweep
from ..study.base import AbstractStudy
from ..study.instance import Instance
from ..study.texts import paragraphs

CHOICES = paragraphs("""
b level: The paper does not say how b_i is drawn: it is N(0, I) + 100 N(0, I), as in the authors' scripts for the noisy
    runs, so that the agents' own minima lie far apart.
curvature: The paper does not say how A_i is drawn: it is R'R/d for a Gaussian matrix R, shifted to the smallest
    eigenvalue 1; Q_i is Gaussian, scaled to the spectral radius 1/1.2.
indefinite: The paper does not say how its nonconvex agents are drawn: here the first one is positive definite, every
    later one has a direction of negative curvature, and the average over the first m agents is positive definite for
    every m.
td step: The paper gives no step for TD: 0.03, as in the authors' scripts.
td law: Kernels are normalised uniform numbers, rewards uniform on [0, 2], features on [0, 1], discounts on [0.5, 0.99].
    Such kernels forget almost at once (second eigenvalue about 0.05): the data are nearly independent.
slow: Not in the paper: the kernels stay in place with probability 0.9. That keeps their stationary laws and makes the
    data correlated in time; the next state enters TD's operator, so its root moves as well.
alike: Not in the paper: 20 agents with 4 states and 2 features, half-way between equal and independently drawn ones
    (heterogeneity 0.5), at the step 0.2. The setting was chosen by theory alone, before anything was simulated: the one
    with the lowest floor of Local SA relative to FedHSA's of 24 on this problem (heterogeneity 0.5 and 1, chance to
    stay 0, 0.9 and 0.97, 10 and 40 local steps, steps 0.05 and 0.2).
finite: The paper does not say how the components are drawn: symmetric Gaussian matrices whose eigenvalues are moved
    onto [1, 10], b_ij from N(0, I), and symmetric random kernels made doubly stochastic.
small: The paper does not say which d its sweep has: it is 10 here, as in the authors' scripts.
scripts: Numbers of the authors' public scripts, which differ from the paper's text.
script noise: The scripts use their noise variance 0.5 as the standard deviation, so does this preset. Their noise
    starts at uniform random numbers, here at zero: after a few rounds there is no difference.
no script: There is no public script for the nonconvex figures: the numbers are those of the convex ones.
shifted: The script has one component per agent: a symmetric Gaussian matrix shifted to the smallest eigenvalue 0.1,
    times an exponential number.
fresh: The scripts draw a new problem, new noise and a new start for every number of agents, one run each; here all
    numbers of agents share one problem, whose first agents they take.
""")
"""Our choices where the paper or the scripts leave settings open, by name."""
FOLDERS = ("paper", "field", "variants", "rl")
"""The folders of studies, in the order of the page; within a folder they are in the order of their claims."""


def studies(preset: str = "paper") -> dict[str, AbstractStudy]:
    """Returns all experiments by name, in the order of the page.

    !!! example
        >>> studies()["quadratic/markov"].step_size, studies("scripts")["quadratic/markov"].step_size
        (0.001, 0.01)
    """
    _check.choice("preset", preset, PRESETS)
    figures = _paper() if preset == "paper" else _scripts()
    return {study.name: study for study in (*figures, *(named() for named in _named()))}


@functools.cache
def _named() -> list[Callable[..., AbstractStudy]]:
    """Returns the studies that have a name without a preset; a file in one of the folders is all that they need."""
    found = []
    for folder in FOLDERS:
        package = importlib.import_module(f"..{folder}", __package__)
        modules = [entry.name for entry in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")]
        for module in modules:
            importlib.import_module(module)
        named = [s for s in AbstractStudy.__subclasses__() if s.__module__ in modules and hasattr(s, "name")]
        found += sorted(named, key=lambda study: study.claim)
    return found


KINDS = {
    "noiseless": "no noise",
    "markov": "Markov noise",
    "slow": "slow chains",
    "alike": "agents that are alike",
    "agents": "more and more agents",
}
"""The end of the name of a figure, and of its title."""


@dataclasses.dataclass(frozen=True)
class _Family:
    """The settings that the figures of one family share."""

    name: str
    title: str
    choices: tuple[str, ...]
    """Names of our choices."""
    start: str = "zeros"

    def saying(self, *choices: str) -> "_Family":
        return dataclasses.replace(self, choices=(*self.choices, *choices))

    def compare(self, kind: str, *problem: Any, **others: Any) -> Comparison:
        return Comparison(**self._settings(kind, *problem), noiseless=kind == "noiseless", **others)

    def sweep(self, source: str, instance: Instance, step_size: float, rounds: int) -> AgentSweep:
        more = instance.change("num_agents", 100)
        return AgentSweep(**self._settings("agents", source, more, step_size, rounds), seeds=16)

    def _settings(self, kind: str, source: str, instance: Instance, step_size: float, rounds: int) -> dict[str, Any]:
        return {
            "name": f"{self.name}/{kind}",
            "title": f"{self.title}, {KINDS[kind]}",
            "source": source,
            "instance": instance,
            "step_size": step_size,
            "rounds": rounds,
            "start": self.start,
            "choices": tuple(CHOICES[name] for name in self.choices),
        }


def _paper() -> list[AbstractStudy]:
    quadratic, convex = _Family("quadratic", "Quadratic losses", ("curvature", "b level")), {"b_level": 100.0}
    nonconvex, bent = _Family("nonconvex", "Nonconvex agents", ("indefinite", "b level")), {**convex, "convex": False}
    td = _Family("td", "TD learning", ("td step", "td law"))
    finite, large = _Family("finite-sum", "Finite sums", ("finite",)), Instance("finite-sum", 200)
    slow, alike = (dataclasses.replace(td, choices=choices) for choices in (("td step", "slow"), ("alike",)))
    lazy = Instance("td", 200, {"laziness": 0.9})
    small = Instance("td", 20, {"num_states": 4, "dim": 2, "heterogeneity": 0.5})
    return [
        quadratic.compare("noiseless", "Figure 2a", Instance("quadratic", 20, convex), 0.001, 1700),
        quadratic.compare("markov", "Figure 2b", Instance("quadratic", 20, convex), 0.001, 1500),
        quadratic.sweep("Figure 3", Instance("quadratic", 20, convex), 0.001, 2400),
        nonconvex.compare("noiseless", "Figure 4a", Instance("quadratic", 20, bent), 0.001, 1850),
        nonconvex.compare("markov", "Figure 4b", Instance("quadratic", 20, bent), 0.001, 1600),
        nonconvex.sweep("Figure 5", Instance("quadratic", 20, bent), 0.001, 2400),
        td.compare("noiseless", "Figure 6a", Instance("td", 200), 0.03, 1150),
        td.compare("markov", "Figure 6b", Instance("td", 200), 0.03, 400),
        td.sweep("Figure 7", Instance("td", 200), 0.03, 2300),
        slow.compare("slow", "Beyond the paper", lazy, 0.03, 1400, ordered=False),
        alike.compare("alike", "Beyond the paper", small, 0.2, 1000, seeds=64, ordered=False),
        finite.compare("noiseless", "Figure 8a", large, 0.01, 50),
        finite.compare("markov", "Figure 8b", large, 0.01, 20, seeds=16),
        finite.saying("small").sweep("Figure 9", _small(large), 0.01, 300),
    ]


def _scripts() -> list[AbstractStudy]:
    quadratic = _Family("quadratic", "Quadratic losses", ("scripts",), "normal")
    nonconvex = _Family("nonconvex", "Nonconvex agents", ("no script", "indefinite"), "normal")
    td = _Family("td", "TD learning", ("scripts", "td law"), "normal")
    finite, large = _Family("finite-sum", "Finite sums", ("scripts",), "normal"), Instance("finite-sum", 200)

    def convex(**arguments: Any) -> Instance:
        return Instance("quadratic", 20, arguments)

    def bent(**arguments: Any) -> Instance:
        return convex(**arguments, convex=False)

    return [
        quadratic.compare("noiseless", "Figure 2a", convex(min_eigenvalue=1e-6), 0.01, 600),
        quadratic.saying("script noise").compare(
            "markov", "Figure 2b", convex(b_level=100.0, noise_std=0.5), 0.01, 2000
        ),
        quadratic.saying("fresh").sweep("Figure 3", convex(min_eigenvalue=10.0, noise_std=1.0), 0.01, 400),
        nonconvex.compare("noiseless", "Figure 4a", bent(), 0.01, 600),
        nonconvex.saying("script noise").compare("markov", "Figure 4b", bent(b_level=100.0, noise_std=0.5), 0.01, 2000),
        nonconvex.saying("fresh").sweep("Figure 5", bent(min_eigenvalue=10.0, noise_std=1.0), 0.01, 400),
        td.compare("noiseless", "Figure 6a", Instance("td", 200), 0.03, 2000),
        td.compare("markov", "Figure 6b", Instance("td", 200), 0.03, 2000),
        td.saying("fresh").sweep("Figure 7", Instance("td", 200), 0.03, 2000),
        finite.saying("shifted").compare(
            "noiseless", "Figure 8a", large.change("num_components", 1).change("min_eigenvalue", 0.1), 0.01, 500
        ),
        finite.saying("finite").compare("markov", "Figure 8b", large, 0.01, 60, seeds=16),
        finite.saying("finite", "fresh").sweep("Figure 9", _small(large), 1e-3, 4000),
    ]


def _small(finite: Instance) -> Instance:
    return finite.change("dim", 10).change("num_components", 10)


QUICK: dict[str, dict[str, Any]] = {
    "td/noiseless": {"num_agents": 40, "num_states": 20, "dim": 10, "rounds": 1300},
    "td/markov": {"num_agents": 40, "num_states": 20, "dim": 10, "rounds": 400, "seeds": 16},
    "td/slow": {"num_agents": 40, "num_states": 20, "dim": 10, "rounds": 2000, "seeds": 16},
    "td/alike": {"seeds": 32},
    "td/agents": {"agents": (1, 5, 20), "num_states": 20, "dim": 10, "rounds": 4000},
    "finite-sum/noiseless": {"num_agents": 40, "dim": 20},
    "finite-sum/markov": {"num_agents": 40, "dim": 20, "rounds": 200},
    "finite-sum/agents": {"agents": (1, 5, 20)},
    "quadratic/markov": {"seeds": 16},
    "nonconvex/markov": {"seeds": 16},
    "quadratic/agents": {"agents": (1, 20)},
    "nonconvex/agents": {"agents": (1, 5, 20)},
}
"""The settings that the quick version reduces in the figures; each study has its own quick settings."""
LEFT_OUT = (
    *("nonconvex/noiseless", "nonconvex/markov", "nonconvex/agents"),
    *("td/noiseless", "td/agents", "td/slow", "td/alike"),
    *("finite-sum/noiseless", "finite-sum/markov", "finite-sum/agents", "speedup/cohort"),
)
"""Experiments that the quick version runs only if they are named: the rest suffices for all ten claims."""
LONG = ("rl/fed-pg-br", "rl/fed-svrpg", "rl/one-shot", "rl/qavg", "rl/sarsa")
"""Experiments that the quick version of a family runs only if they are named: they take long at any size."""
BEYOND = ("field/", "rl/")
"""Prefixes of the names of experiments that are not about the paper, which run only when they are named."""
LEAST = {"seeds": 2, "rounds": 4}
"""The smallest values: confidence intervals need two seeds, and floors need a few rounds."""


def quick(experiment: AbstractStudy) -> AbstractStudy:
    """Returns a version of the experiment that takes a few seconds."""
    if experiment.name not in QUICK:
        return experiment.quick()
    for name, value in QUICK[experiment.name].items():
        experiment = change(experiment, name, value)
    return experiment


def change(experiment: AbstractStudy, name: str, value: Any) -> AbstractStudy:
    """Returns the experiment with one setting replaced: a field of the experiment, or an argument of its problem.

    !!! example
        >>> slower = change(studies()["td/markov"], "laziness", 0.5)
        >>> slower.instance.arguments["laziness"]
        0.5
    """
    if name in _own_settings(experiment):
        return dataclasses.replace(experiment, **{name: _fitting(name, value, getattr(experiment, name))})
    field, _, argument = name.rpartition(".")
    field = "instance" if field in ("", "problem") else field
    instance = _instances(experiment).get(field)
    if instance is None or argument not in _arguments(instance):
        raise ValueError(
            f"The experiment {experiment.name} has no setting `{name}`. It has {', '.join(names(experiment))}."
        )
    fitting: Any = instance.change(argument, _fitting(name, value, instance.settings()[argument]))
    return dataclasses.replace(experiment, **{field: fitting})


def names(experiment: AbstractStudy) -> list[str]:
    """Returns the names of the settings that `change` accepts."""
    found = _own_settings(experiment)
    for field, instance in _instances(experiment).items():
        prefix = "" if field == "instance" else f"{field}."
        found += [prefix + n if prefix + n not in found else f"problem.{n}" for n in _arguments(instance)]
    return found


def _own_settings(experiment: AbstractStudy) -> list[str]:
    """Returns the fields that are settings; the other fields identify the experiment or hold its problem."""
    words = ["name", "title", "source", "choices", "ordered", *_instances(experiment)]
    words += [] if experiment.random else ["seeds", "key"]
    return [field.name for field in dataclasses.fields(experiment) if field.name not in words]


def _instances(experiment: AbstractStudy) -> dict[str, Instance]:
    values = {field.name: getattr(experiment, field.name) for field in dataclasses.fields(experiment)}
    return {name: value for name, value in values.items() if isinstance(value, Instance)}


def _arguments(instance: Instance) -> list[str]:
    return list(inspect.signature(PROBLEMS[instance.family]).parameters)


def _fitting(name: str, value: Any, present: Any) -> Any:
    """Returns the value converted to the type of the present value; raises an error if that is not possible."""
    if name in LEAST:
        _check.count(name, value, least=LEAST[name])
    if isinstance(present, tuple):
        value = tuple(value) if isinstance(value, list | tuple) else (value,)
        return tuple(_fitting(name, entry, present[0]) for entry in value) if present else value
    if isinstance(present, bool):
        if not isinstance(value, bool):
            raise ValueError(f"`{name}` must be true or false, got {value!r}.")
    elif isinstance(present, int):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"`{name}` must be a whole number, got {value!r}.")
    elif isinstance(present, float):
        _check.number(name, value)
        return float(value)
    elif isinstance(present, str) and not isinstance(value, str):
        raise ValueError(f"`{name}` must be a word, got {value!r}.")
    return value
