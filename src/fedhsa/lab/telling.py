"""Sentences about the lab's grid worlds: explanations of the maps and curves, and warnings about inaccurate numbers."""

import math
import re

import numpy as np

from .._numbers import tick
from .maps import shown
from .svg import escape, tag
from .worlds import STEPS, Solution

SLOW = 0.998
"""The smallest factor of the mean error per round for which the limit takes long to reach."""


def _place(found: Solution, state: int) -> str:
    assert found.model.grid is not None
    row, column = divmod(int(state), found.model.grid[1])
    return f"row {row + 1}, column {column + 1}"


def about_agent(found: Solution, agent: int) -> str:
    """Return sentences that compare an agent's own solution with the common solution."""
    model, setting = found.model, found.setting
    start = int(model.start[agent].argmax())
    own, root = found.own[agent].max(-1), found.root.max(-1)
    others = found.own.max(-1)[:, start]
    text = f"**Agent {agent + 1}** values the start at **{shown(own[start])}**"
    if model.num_agents > 1:
        text += f" (the agents' own values range from {shown(others.min())} to {shown(others.max())})"
    text += f"; the common solution says **{shown(root[start])}**."
    acts = found.visits[agent] > 0
    mine, common = found.greedy(found.own[agent], agent), found.greedy(found.root, agent)
    differ = int((((mine > 0) & (common > 0)).sum(-1) == 0)[acts].sum())
    where = f"in {differ} of the {acts.sum()} cells that it visits" if differ else "in no cell that it visits"
    text += f" The best actions of the two differ {where}."
    if setting.task == "control":
        best, follows = model.returns(model.greedy(found.own))[agent], found.returns(found.root)[agent]
        text += (
            f" Agent {agent + 1} can earn {shown(best)} per episode, and earns {shown(follows)} with the common table."
        )
    return text


def about_root(found: Solution) -> str:
    """Return sentences on the difference between the root and the mean of the agents' own solutions."""
    root, mean = found.root.max(-1), found.own.max(-1).mean(0)
    gap = np.where(found.active, root - mean, 0.0)
    if found.model.num_agents == 1:
        return "There is one agent, so that the root is its own solution."
    if abs(gap).max() <= 1e-9 * (1 + abs(root).max()):
        return "The agents are equal: the root is the solution of each of them, and learning together only saves data."
    state = int(abs(gap).argmax())
    come = int((found.visits[:, state] > 0).sum())
    visit = "visits" if come == 1 else "visit"
    return (
        "The root is **not** the mean of the agents' solutions, because an agent counts in a cell as often as it "
        f"visits the cell. They differ most in {_place(found, state)}: the root says {shown(root[state])}, the mean "
        f"{shown(mean[state])}, and {come} of {found.model.num_agents} agents {visit} this cell." + _alone(found)
    )


def _alone(found: Solution) -> str:
    """Return a remark on cells that a single agent visits."""
    count = int(((found.visits > 0).sum(0)[found.active] == 1).sum())
    cells = "One cell is" if count == 1 else f"{count} cells are"
    return f" {cells} visited by one agent only, so that the root rests on a single world there." if count else ""


def about_limits(found: Solution) -> str:
    """Return sentences on the limits of the methods without noise."""
    local, ours = found.curves["LocalSA"], found.curves["FedHSA"]
    sentences = []
    if ours.limit is None:
        sentences.append(_lost("FedHSA", ours.radius))
    else:
        sentences.append("The limit of **FedHSA** without noise is the root.")
    if local.limit is None:
        sentences.append(_lost("LocalSA", local.radius))
    elif local.bias <= 1e-9 * (1 + abs(found.root).max()):
        same = "one local step per round" if found.setting.local_steps == 1 else "these agents"
        sentences.append(f"With {same} **LocalSA** has the same limit.")
    else:
        gap = found.gap(local.limit)
        state = int(abs(gap).argmax())
        sentences.append(
            f"**LocalSA** drifts to a point at distance **{tick(local.bias)}** from it, and misses most in "
            f"{_place(found, state)}: by {shown(float(gap[state]))}."
        )
    return " ".join(sentences)


def _lost(name: str, radius: float) -> str:
    if math.isnan(radius):
        return f"No limit of **{name}** without noise was found: Newton's method did not settle."
    growth = f"a round multiplies the mean error by {radius:.3g}"
    return f"**{name}** diverges: {growth}. Lower the step size or the local steps."


def about_errors(found: Solution) -> str:
    """Return sentences that explain the curves."""
    setting, curves = found.setting, found.curves
    if setting.task == "control":
        text = "The curves are the noise-free rounds of both methods, computed one after the other"
        follow = max(STEPS // setting.local_steps, 20)
        text += f" for {follow} rounds." if follow < setting.rounds else "."
        if setting.sampling != "none":
            text += " No law of Q-learning's noise is quick enough for a slider: simulate to see it."
        return text
    if setting.sampling == "none":
        return "Without noise the curves are exact. They end where the methods settle."
    parts = []
    for name, curve in curves.items():
        if math.isfinite(curve.floor):
            share = min(curve.bias**2 / curve.floor, 1.0) if curve.floor > 0 else 1.0
            parts.append(f"{name} settles at a mean-square error of {tick(curve.floor)}, of which {share:.0%} is drift")
    if len(parts) < 2:
        return (parts[0] + ".") if parts else "Both methods diverge."
    better = min(curves, key=lambda name: curves[name].floor)
    text = "; ".join(parts) + "."
    if better == "LocalSA":
        text += (
            " Here the last round of LocalSA is the better one: the correction of FedHSA is measured by one transition "
            "of each agent and adds noise. That noise averages out over rounds (`fh.Averaged`); the drift does not."
        )
    return text


def doubts(found: Solution) -> list[str]:
    """Return a warning for each method whose error is not what its limit without noise suggests."""
    curves = found.curves.items()
    wild = [name for name, curve in curves if curve.limit is not None and math.isinf(curve.floor)]
    sentences = [
        f"The mean-square error of **{name}** grows without bound, although its mean converges: the noise in the "
        "operators' matrices is too strong. Lower the step size or the local steps."
        for name in wild
    ]
    slow = [name for name, curve in curves if curve.limit is not None and curve.radius > SLOW]
    if slow:
        sentences.append(
            f"After {found.setting.rounds} rounds {' and '.join(slow)} may still be far from the limit on the map: a "
            f"round removes less than {1 - SLOW:.1%} of the slowest part of the error."
        )
    return sentences


def html(text: str) -> str:
    """Return a sentence as HTML: `**bold**` and code in backticks are the only marks."""
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(text))
    return re.sub(r"`(.+?)`", r"<code>\1</code>", text)


def says(*texts: str) -> str:
    """Return sentences as paragraphs that screen readers announce when they change."""
    return tag("div", "".join(tag("p", html(text)) for text in texts if text), cls="fh-says", aria_live="polite")


def warned(texts: list[str]) -> str:
    """Return warnings as boxes."""
    return "".join(tag("p", f"<b>Warning.</b> {html(text)}", cls="fh-warning", role="alert") for text in texts)
