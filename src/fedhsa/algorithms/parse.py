"""Algorithms from text, as on the command line: `FedHSA`, `FedHSA(local_steps=5)`, `Compressed(FedHSA, TopK(0.1))`."""

import ast
import difflib
import inspect
import sys
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ..problems import Problem
from ..sources import IID, FiniteChain
from . import attacks, codecs, graphs, rules, sampling
from .base import AbstractAlgorithm


def parse(text: str, problem: Problem | None = None, **defaults: Any) -> AbstractAlgorithm:
    """The algorithm that `text` describes, in the words one would use in Python.

    **Arguments:**

    - `problem`: what the algorithm is for, which some parts need (a graph, the number of agents).
    - `defaults`: arguments for whatever is not given in the text, like `step_size=0.1, local_steps=10`.

    !!! example
        >>> parse("FedHSA(local_steps=5)", step_size=0.1, local_steps=10)
        FedHSA(step_size=0.1, local_steps=5)
        >>> parse("Compressed(FedHSA, TopK(0.1))", step_size=0.1, local_steps=10).algorithm.local_steps
        10
        >>> parse("FedHAS", step_size=0.1)
        Traceback (most recent call last):
        ValueError: `algorithm`: there is no 'FedHAS'. Did you mean 'FedHSA'?
    """
    try:
        expression = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"`algorithm` must read like `Averaged(FedHSA)`, got {text!r}: {error.msg}.") from None
    found = _build(expression, _known(problem, defaults), text)
    if not isinstance(found, AbstractAlgorithm):
        raise ValueError(f"`algorithm` must name an algorithm, got {text!r}. `fedhsa list` shows them.")
    return found


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


def _build(node: ast.expr, defaults: Mapping[str, Any], text: str) -> Any:
    if isinstance(node, ast.Name):
        return _construct(node.id, [], {}, defaults)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        positional = [_build(argument, defaults, text) for argument in node.args]
        named = {word.arg: _build(word.value, defaults, text) for word in node.keywords if word.arg is not None}
        return _construct(node.func.id, positional, named, defaults)
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_build(part, defaults, text) for part in node.elts)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"`algorithm`: {ast.unparse(node)!r} in {text!r} is neither a name nor a value.") from None


def _construct(name: str, positional: list, named: dict[str, Any], defaults: Mapping[str, Any]) -> Any:
    classes = _classes()
    if name not in classes:
        near = difflib.get_close_matches(name.lower(), [part.lower() for part in classes], n=1)
        meant = [f" Did you mean {part!r}?" for part in classes if part.lower() in near]
        raise ValueError(f"`algorithm`: there is no {name!r}.{meant[0] if meant else ' `fedhsa list` shows them.'}")
    parameters = inspect.signature(classes[name]).parameters
    try:
        given = inspect.signature(classes[name]).bind_partial(*positional, **named).arguments
    except TypeError as error:
        raise ValueError(f"`algorithm`: {name} {error}. Its arguments are {', '.join(parameters)}.") from None
    if issubclass(classes[name], AbstractAlgorithm) and "local_steps" in defaults:
        defaults = {"probability": 1 / defaults["local_steps"], **defaults}  # as often, on average
    given = {word: value for word, value in defaults.items() if word in parameters} | given
    missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in given]
    if missing:
        raise ValueError(f"`algorithm`: {name} needs `{missing[0]}`, as in `{name}({missing[0]}=...)`.")
    return classes[name](**given)


def _classes() -> dict[str, type[eqx.Module]]:
    """All that algorithms are made of, by name."""
    package = sys.modules[__name__.rpartition(".")[0]]
    return {
        name: value
        for module in (package, attacks, codecs, graphs, rules, sampling)
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, eqx.Module) and not inspect.isabstract(value)
    }
