"""Explains an analysis in plain sentences."""

import math

from ..algorithms import AbstractSchedule, PerBlock
from ..theory import Prediction
from . import forecast
from .analysis import Analysis


def sentences(analysis: Analysis) -> list[str]:
    """Returns sentences that explain the numbers."""
    lines = []
    for name, p in analysis.available.items():
        if not p.stable:
            lines.append(forecast.explain_divergence(name, p))
            continue
        lines += [_stability(name, p), *_stopping(name, p)]
        if analysis.settings.target is not None:
            lines.append(_reaching(name, p, analysis.settings.target))
    return lines


def _stability(name: str, p: Prediction) -> str:
    if math.isnan(p.max_step_size):
        return f"{name}: stable with these settings; how large the step may be takes long to find on this problem."
    if math.isinf(p.max_step_size):
        return f"{name}: stable at every step."
    step = p.algorithm.layers[-1].step_size  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(step, AbstractSchedule):
        which = "the largest step of a block is" if isinstance(step, PerBlock) else "constant steps are"
        return f"{name}: {which} stable up to {p.max_step_size:.3g}{_sense(p)}."
    if p.max_local_steps is None:
        return f"{name}: stable up to step {p.max_step_size:.3g}{_sense(p)}."
    most = "any number of" if math.isinf(p.max_local_steps) else f"up to {p.max_local_steps:,.0f}"
    H = p.algorithm.block_length
    largest = f"{p.max_step_size:.3g} at H = {H}{_sense(p)}"
    return f"{name}: stable up to step {largest}, and at step {step:g} with {most} local steps."


def _sense(p: Prediction) -> str:
    """Returns the sense in which the largest step size is stable, unless it is stable in every sense."""
    kind = p.max_step_size.kind
    return {"mean": " (in the mean; noise may allow less)", "mean square, exact": ""}.get(kind, f" ({kind})")


def _stopping(name: str, p: Prediction) -> list[str]:
    """Returns the error at which a method stops, its cause, and whether more agents would help."""
    if p.basis == "mean":
        bias = float(p.heterogeneity_bias @ p.heterogeneity_bias)
        where = "goes to the root" if negligible(bias, p) else f"stops {math.sqrt(bias):.2g} from the root"
        return [f"The mean of {name} {where}; how much noise remains around it is not known for this method."]
    if math.isnan(p.rate):
        return [f"{name} has no floor: its step size keeps changing."]
    if negligible(p.floor, p):
        return [f"{name} goes all the way to the root: there is neither noise nor bias."]
    bias = float(p.bias @ p.bias) / p.floor
    if bias > 0.5:
        biases = {"heterogeneity": p.heterogeneity_bias, "Markov": p.markov_bias, "curvature": p.curvature_bias}
        cause = max(biases, key=lambda kind: float(biases[kind] @ biases[kind]))
        mostly = "" if float(biases[cause] @ biases[cause]) > 0.8 * bias * p.floor else "bias, most of it "
        why = f"{percent(bias)} of that is {mostly}{cause} bias. A smaller step or fewer local steps reduce it."
    else:
        why = f"{percent(1 - bias)} of that is noise, which a smaller step or more agents reduce."
    lines = [f"{name} will not get below {p.floor:.2g} with these settings: {why}"]
    agents, M = p.saturation_agents, p.problem.num_agents
    if negligible(p.noise_variance, p):
        lines.append(f"{name}: there is no noise that more agents could average out.")
    elif math.isnan(agents):
        lines.append(f"{name}: how far more agents would help is not known.")
    elif math.isinf(agents):
        lines.append(f"{name}: every further agent helps, the floor goes like 1/M.")
    elif agents > 100 * M:
        lines.append(f"{name}: further agents help, up to about {rough(agents)}.")
    elif agents < M:
        lines.append(f"{name}: more agents will not help: from about {rough(agents)} on, bias is what is left.")
    else:
        lines.append(f"{name}: more than about {rough(agents)} agents will not help at this step: the rest is bias.")
    return lines


def _reaching(name: str, p: Prediction, target: float) -> str:
    rounds = p.reach(target).rounds
    if p.basis == "mean":
        after = "never" if math.isinf(rounds) else f"after {rounds:,.0f} rounds"
        return f"The squared error of {name}'s mean is {target:g} {after}; noise comes on top."
    if math.isnan(rounds):
        return f"When {name} reaches {target:g} is not known."
    if math.isinf(rounds):
        return f"{name} cannot reach {target:g} with these settings: its error stops at {p.floor:.3g}."
    return f"{name} reaches {target:g} after {rounds:,.0f} rounds."


def negligible(square: float, p: Prediction) -> bool:
    """Returns whether a squared error is only a rounding error."""
    root = p.problem.theta_star
    return square <= 1e-24 * (1 + float(root @ root))


def percent(share: float) -> str:
    """Returns a share in words, without rounding it to all or nothing."""
    whole = 100 * min(max(share, 0.0), 1.0)
    return "> 99 %" if 99.5 < whole < 100 else "< 1 %" if 0 < whole < 0.5 else f"{whole:.0f} %"


def rough(agents: float) -> str:
    """Returns a number of agents to two digits, because further digits would not be accurate."""
    if agents < 1:
        return "1"
    digits = max(0, math.floor(math.log10(agents)) - 1)
    return f"{round(agents / 10**digits) * 10**digits:,.0f}"
