"""Algorithms from text, as on the command line: `FedHSA`, `FedHSA(local_steps=5)`, `Compressed(FedHSA, TopK(0.1))`."""

import ast
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from .. import _check, _own
from ..problems import Problem
from ..sources import IID, FiniteChain
from . import attacks, codecs, graphs, rules, sampling
from .base import AbstractAlgorithm


def parse(text: str, problem: Problem | None = None, **defaults: Any) -> AbstractAlgorithm:
    """Returns the algorithm that `text` describes, in Python's notation.

    A name can also be your own class, or a function that returns an algorithm, with its file or module:
    `mine.py:HalfHSA(local_steps=5)`, `Averaged(package.module:HalfHSA)`. An installed package can add names as entry
    points of the group `fedhsa.algorithms`.

    **Arguments:**

    - `text`: the algorithm with its settings and wrappers.
    - `problem`: the problem to run on, which some parts need (a graph, the number of agents).
    - `defaults`: arguments that are used if the text does not give them, like `step_size=0.1, local_steps=10`.

    Raises `ValueError` if the text cannot be read, a name is not known, or an argument is missing or not valid.

    !!! example
        >>> parse("FedHSA(local_steps=5)", step_size=0.1, local_steps=10)
        FedHSA(step_size=0.1, local_steps=5)
        >>> parse("Compressed(FedHSA, TopK(0.1))", step_size=0.1, local_steps=10).algorithm.local_steps
        10
        >>> parse("FedHAS", step_size=0.1)
        Traceback (most recent call last):
        ValueError: `algorithm`: there is no 'FedHAS'. Did you mean 'FedHSA'?
    """
    own: dict[str, _own.Reference] = {}

    def stand_in(found: _own.Reference) -> str:
        name = f"own_{len(own)}_"
        own[name] = found
        return name

    try:
        expression = ast.parse(_own.replace(text.strip(), stand_in), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"`algorithm` must read like `Averaged(FedHSA)`, got {text!r}: {error.msg}.") from None
    found = _Reading(text, own, _known(problem, defaults)).build(expression)
    if not isinstance(found, AbstractAlgorithm):
        if own:
            what = f"makes {type(found).__name__}, which is not one: derive the class from `AbstractAlgorithm`"
            raise ValueError(f"`algorithm` must name an algorithm, but {text} {what}.")
        raise ValueError(f"`algorithm` must name an algorithm, got {text!r}. `fedhsa list` shows them.")
    return found


def algorithm_class(name: str) -> Callable[..., AbstractAlgorithm]:
    """Returns the class for a name: of this package, of `mine.py:HalfHSA`, or of an entry point; or a function like it.

    !!! example
        >>> algorithm_class("FedHSA")
        <class 'fedhsa.algorithms.fed_hsa.FedHSA'>
    """
    found = _own.reference(name)
    return _Reading(name, {} if found is None else {name: found}, {}).find(name)[0]


def _known(problem: Problem | None, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that need not be in the text."""
    known = dict(defaults)
    if "local_steps" in known:
        known |= {"gaps": (known["local_steps"],), "samples": known["local_steps"]}
    if problem is not None:
        known |= {"num_agents": problem.num_agents, "theta_star": problem.theta_star}
        known["sizes"] = tuple(np.size(leaf) for leaf in jax.tree.leaves(problem.like))
        source = problem.agents.source
        chain = source.source if isinstance(source, IID) else source
        if isinstance(chain, FiniteChain):
            known["num_components"] = chain.transition.shape[-1]
    return {**known, **defaults}


class _Reading(NamedTuple):
    """A text with its defaults, in which placeholder names replace references to the user's own code."""

    text: str
    own: Mapping[str, _own.Reference]
    defaults: Mapping[str, Any]

    def build(self, node: ast.expr) -> Any:
        """Builds the object that this part of the text describes."""
        if isinstance(node, ast.Name):
            return self.construct(node.id, None, {})
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            positional = [self.build(argument) for argument in node.args]
            named = {word.arg: self.build(word.value) for word in node.keywords if word.arg is not None}
            return self.construct(node.func.id, positional, named)
        if isinstance(node, ast.Tuple | ast.List):
            return tuple(self.build(part) for part in node.elts)
        try:
            return ast.literal_eval(node)
        except ValueError:
            part = ast.unparse(node)
            for name, found in self.own.items():
                part = part.replace(name, str(found))
            raise ValueError(f"`algorithm`: {part!r} in {self.text!r} is neither a name nor a value.") from None

    def construct(self, name: str, positional: list | None, named: dict[str, Any]) -> Any:
        """Builds the object of this name from arguments and defaults; `positional` is None without brackets."""
        make, name = self.find(name)
        if isinstance(make, eqx.Module):  # a user's algorithm, with its settings
            if positional is not None:
                raise ValueError(f"`algorithm`: {name} is complete and takes no arguments, got {self.text!r}.")
            return make
        parameters = inspect.signature(make).parameters
        try:
            given = inspect.signature(make).bind_partial(*(positional or ()), **named).arguments
        except TypeError as error:
            said = str(error) if str(error).startswith("got ") else f"got {error}"
            raise ValueError(f"`algorithm`: {name} {said}. Its arguments are {', '.join(parameters)}.") from None
        defaults = self.defaults
        makes_algorithms = not inspect.isclass(make) or issubclass(make, AbstractAlgorithm)  # or is a user's function
        if makes_algorithms and "local_steps" in defaults:
            defaults = {"probability": 1 / defaults["local_steps"], **defaults}  # the same frequency on average
        given = {word: value for word, value in defaults.items() if word in parameters} | given
        missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in given]
        if missing:
            raise ValueError(f"`algorithm`: {name} needs `{missing[0]}`, as in `{name}({missing[0]}=...)`.")
        if name in _classes():
            return make(**given)
        with _own.told(f"`algorithm`: {name} raised an error", checked=True):
            return make(**given)

    def find(self, name: str) -> tuple[Any, str]:
        """Returns the object of this name, and the name as the user wrote it."""
        if name in self.own:
            name, found = str(self.own[name]), _own.load("algorithm", self.own[name])
        elif name in (classes := _classes()):
            return classes[name], name
        elif name in (offered := _own.entry_points("algorithm")):
            found = _own.load_entry_point("algorithm", name)
        else:
            near = _check.nearest(name, [*classes, *offered]) or " `fedhsa list` shows them."
            raise ValueError(f"`algorithm`: there is no {name!r}.{near}")
        if inspect.isclass(found) and inspect.isabstract(found):
            lacking = ", ".join(f"`{method}`" for method in sorted(found.__abstractmethods__))  # pyright: ignore[reportAttributeAccessIssue]
            raise ValueError(f"`algorithm`: {name} is not complete: the class must define {lacking}.")
        if not isinstance(found, eqx.Module) and not inspect.isclass(found) and not inspect.isfunction(found):
            raise ValueError(
                f"`algorithm`: {name} must be an algorithm, its class, or a function that returns one, got {found!r}."
            )
        return found, name


def _classes() -> dict[str, type[eqx.Module]]:
    """All classes that an algorithm can consist of, by name."""
    package = sys.modules[__name__.rpartition(".")[0]]
    return {
        name: value
        for module in (package, attacks, codecs, graphs, rules, sampling)
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, eqx.Module) and not inspect.isabstract(value)
    }
