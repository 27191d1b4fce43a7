"""Values of studies that pages quote, beside those of their checks and tables: one function for each study."""

from collections.abc import Callable
from typing import Any

import numpy as np


def one_exchange(study: Any, outcome: Any) -> dict[str, Any]:
    """Largest stable steps relative to FedHSA's, and exchanges until twice FedHSA's floor."""
    one, two, H = "OneExchangeFedHSA", "FedHSA", outcome.arrays["local_steps"]
    shares = outcome.arrays[f"{one}/boundary"] / outcome.arrays[f"{two}/boundary"]
    settled = np.flatnonzero(abs(shares - shares[-1]) >= 0.005)[-1] + 1
    return {
        "share, many": shares[-1],
        "share, lowest": shares.min(),
        "share, highest": shares.max(),
        "share, many from": float(H[settled]),
        "trips, one": study._trips(outcome, one),
        "trips, two": study._trips(outcome, two),
    }


def participation(study: Any, outcome: Any) -> dict[str, Any]:
    """Costs, the effect of correlated participation, and the bias of weighted exchanges."""
    from fedhsa import statistics

    arrays, found = outcome.arrays, {}
    found["availability by Bernoulli"] = statistics.ratio(arrays["availability"], arrays["Bernoulli"])
    found["bias, 0.02"] = study.bias(outcome, 0.02)
    for noise in ("0.25", "4"):
        found[f"evaluations, noise {noise}"] = study.price(outcome, noise, "evaluations")
    scaffold = {sigma: arrays[f"SCAFFOLD/noise {sigma:g}"] for sigma in study.noise}
    for other in ("FedHSA", "FedHSA, all answer"):
        for sigma, floors in scaffold.items():
            others = arrays[f"{other}/noise {sigma:g}"]
            found[f"SCAFFOLD by {other}, noise {sigma:g}"] = statistics.ratio(floors, others)
    return found


def compressed(study: Any, outcome: Any) -> dict[str, Any]:
    """Floors relative to the uncompressed one, speed-ups, and bytes until an error."""
    from fedhsa import statistics

    labels, found = list(outcome.facts["bytes"]), {}
    plain = outcome.arrays[f"uncompressed/noise {study.middle:g}"]
    for label in labels:
        for step in (study.steps[0], study.steps[-1]):
            found[f"{label}, by plain, {step:g}"] = study.by_plain(outcome, label, step)
        found[f"{label}, gain"] = study.speed_up(outcome, label)
        for target in study.targets:
            found[f"{label}, bytes to {target:g}"] = study.price(outcome, label, target)
            found[f"{label}, all bytes to {target:g}"] = study.price(outcome, label, target, ("up", "down"))
        own = outcome.arrays[f"{label}/noise {study.middle:g}"]
        rounds = [statistics.crossing(errors.mean(0), 1.0) for errors in (own, plain)]
        found[f"{label}, rounds to 1"] = rounds[0] / rounds[1] if np.isfinite(rounds).all() else None
    found["first error"] = float(plain[:, 0].mean())
    return found


MORE: dict[str, Callable[[Any, Any], dict[str, Any]]] = {
    "field/one-exchange": one_exchange,
    "field/participation": participation,
    "field/compressed": compressed,
}
