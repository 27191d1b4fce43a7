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


def adversaries(study: Any, outcome: Any) -> dict[str, Any]:
    """Squared errors under attacks, and without them; none where a run diverges."""
    rows, costs = outcome.facts["rows"], outcome.facts["costs"]
    found = {f"{row['rule']}, {row['attack']} {row['size']:g}, {row['place']}": row["error"] for row in rows}
    alone = [row for row in costs if row["place"] == "operators"]
    return found | {f"{row['rule']}, nobody, {row['heterogeneity']:g}": row["error"] for row in alone}


def garnet(study: Any, outcome: Any) -> dict[str, Any]:
    """Floors of all methods, and the predicted squared bias of LocalSA."""
    from fedhsa.experiments.field.garnet import METHODS, floor_of

    labels = {row["label"]: row["bias"] for row in outcome.facts["rows"]}
    found = {f"{label}, {m}": float(floor_of(outcome, label, m).mean()) for label in labels for m in METHODS}
    return found | {f"{label}, predicted": bias for label, bias in labels.items()}


def speedup(study: Any, outcome: Any) -> dict[str, Any]:
    """The slope of FedHSA with one agent among the numbers of agents."""
    from fedhsa import statistics

    errors = outcome.arrays["equal, H = 100/FedHSA"]
    return {"equal, H = 100, FedHSA, from 1": statistics.slope(study.equal_agents, errors)}


def scaffnew(study: Any, outcome: Any) -> dict[str, Any]:
    """Exchanges of tuned methods, and where the best run of LocalSA ends."""
    found = {name: study._fewest(outcome, name) for name in ("Scaffnew", "SCAFFLSA", "FedHSA", "SGD")}
    ends = [row["end"] for row in outcome.facts["rows"] if row["method"] == "LocalSA" and row["end"] is not None]
    return found | {"LocalSA, end": min(ends)}


def quadratics(study: Any, outcome: Any) -> dict[str, Any]:
    """How many times as fast as SGD methods are, by the common step size."""
    from fedhsa.experiments.field.quadratics import speedups

    labels = [label for label in outcome.facts["speeds"] if label != "SGD"]
    return {
        f"{label}, {step:g}": value
        for label in labels
        for step, value in zip(study.tried_steps, speedups(outcome, label), strict=True)
    }


def rounds(study: Any, outcome: Any) -> dict[str, Any]:
    """The numbers of rounds, the fewest that are enough, and the cost of prescribed step sizes; another problem."""
    from fedhsa import problems

    found, R = {}, study.frontier
    for kind in ("few", "root"):
        found[f"rounds, {kind}"] = float(study._rounds_of(outcome, kind, R))
    for sampling in ("independent", "markov"):
        for method in ("DisSACC", "SCAFFLSA", "FedHSA", "LocalSA"):
            enough = study._enough(outcome, sampling, method)
            found[f"enough, {sampling}, {method}"] = float(enough) if str(enough).isdigit() else None
    for method, kind in (("DisSACC", "few"), ("FedHSA", "root")):
        found[f"prescribed, {method}"] = study._ratio(outcome, "independent", ("prescribed", method), (kind, method), R)
    A, _ = problems.td.random(10, num_states=8, dim=3).affine_parts()
    mu = np.linalg.eigvalsh(-(A.mean(0) + A.mean(0).T) / 2)[0]
    factor = float((np.linalg.norm(A, 2, axis=(1, 2)).max() / mu) ** 2)
    R = np.logspace(2, 8, 100_000)
    many = R[np.flatnonzero(factor * np.log(10 * R) > np.sqrt(10 * R))[-1]]  # (L/mu)² log(MR) rounds against sqrt(MR)
    return found | {"td, factor": factor, "td, R": float(f"{many:.1g}")}


def delays(study: Any, outcome: Any) -> dict[str, Any]:
    """Where vanilla updates become unstable in the mean."""
    return {"limit": study.limit(outcome)}


def boundary(study: Any, outcome: Any) -> dict[str, Any]:
    """The largest step with one exchange by FedHSA's at about a hundred local steps, and counts of runs."""
    found = {}
    for name in ("scalars", "quadratic", "td"):
        at = int(np.searchsorted(outcome.arrays[f"{name}/local_steps"], 100))
        one, two = (outcome.arrays[f"{name}/{method}"][at] for method in ("OneExchangeFedHSA", "FedHSA"))
        found[f"{name}, one exchange"] = one / two
    rows = outcome.facts["rows"]
    found["runs"] = float(sum(row["method"] == "FedHSA" for row in rows))
    for method in ("FedHSA", "OneExchangeFedHSA"):
        close = [row for row in rows if row["method"] == method and row["near"]]
        *others, worst = sorted(abs(row["growth"] - row["radius"]) for row in close)
        found |= {f"{method}, off": worst, f"{method}, off, without the worst": others[-1]}
    between = next(row for row in outcome.facts["noisy"] if row["problem"] == "td" and row["where"] == "between")
    return found | {f"td, between, {key}": between[key] for key in ("radius", "mean_square_radius")}


def table1(study: Any, outcome: Any) -> dict[str, Any]:
    """The columns of the table."""
    found = {}
    for name in study.systems:
        exchanges, sent = study.reach(outcome, name) or (None, None)
        found |= {f"{name}, error": study.bias(outcome, name), f"{name}, power": study.slope(outcome, name)}
        found |= {f"{name}, Markov": study.inflation(outcome, name), f"{name}, exchanges": exchanges}
        found[f"{name}, kB"] = None if sent is None else sent / 1000
    return found


def personal(study: Any, outcome: Any) -> dict[str, Any]:
    """The gain in time at every heterogeneity."""
    return {f"gain, {h:g}": study.gain(outcome, h) for h in study.heterogeneities}


def replay(study: Any, outcome: Any) -> dict[str, Any]:
    """What data drop costs."""
    return {"drop by SGD": study.ratio(outcome, "SGD with data drop", "SGD")}


def importance(study: Any, outcome: Any) -> dict[str, Any]:
    """Errors where the source's figure ends, and where they stay."""
    from fedhsa.experiments.rl.importance import NAMES, SOURCE
    from fedhsa.experiments.study import late

    at = SOURCE // study.local_steps // outcome.facts["every"]
    found = {f"{name}, early": float(outcome.arrays[name][:, at].mean()) for name in NAMES}
    return found | {f"{name}, late": float(late(outcome.arrays[name]).mean()) for name in NAMES}


def one_shot(study: Any, outcome: Any) -> dict[str, Any]:
    """The part of the error that averaging does not change."""
    return {f"TD({trace:g}), bias": outcome.facts["predicted"][f"{trace:g}"][0] / 5 for trace in study.traces}


def qavg(study: Any, outcome: Any) -> dict[str, Any]:
    """Final errors, returns on cliffs, and the largest error by the bound."""
    found = {
        f"{name}, E = {E}": float(study.end(outcome, name, E).mean())
        for E in study.local_steps
        for name in study.methods(E)
    }
    for kappa in study.kappas:
        for name in ("centre", "cohort"):
            found[f"{name}, {kappa:g}"] = float(outcome.arrays[f"{name}, {kappa:g}"].mean())
    last = outcome.arrays[f"centre, {max(study.kappas):g}"]
    found["centre, standard error"] = float(last.std(ddof=1) / np.sqrt(len(last)))
    curve = outcome.arrays["printed, E = 1"]
    at = outcome.facts["every"] * np.arange(curve.shape[1])
    return found | {"printed, E = 1, by the bound": float((curve / study.bound(1, at)).max())}


def sarsa(study: Any, outcome: Any) -> dict[str, Any]:
    """Squared distances from both roots, and the drift of LocalSA."""
    from fedhsa.experiments.rl.sarsa import NAMES, floor

    found = {}
    for row in outcome.facts["rows"]:
        label = row["label"]
        for name in NAMES:
            if f"{label}/{name}/first" in outcome.arrays:
                for root in ("first", "common"):
                    found[f"{label}, {name}, {root}"] = float(floor(outcome, label, name, root).mean())
        found[f"{label}, apart"] = row["apart"]
        found |= {f"{label}, drift, H = {H}": size for H, size in row["drift"].items()}
    return found


def two_phases(study: Any, outcome: Any) -> dict[str, Any]:
    """FedHSA and SCAFFLSA relative to LocalSA, with noise."""
    gains = {f"FedHSA, E = {E}, gain": study.gain(outcome, E) for E in study.local_steps if E > 1}
    return gains | {"SCAFFLSA, gain": study.gain(outcome, max(study.local_steps), "SCAFFLSA")}


def fed_dvr_q(study: Any, outcome: Any) -> dict[str, Any]:
    """Samples and bits of every case."""
    found = {}
    for what in ("samples", "bits"):
        for (M, discount), value in zip(study.cases(), study.estimates(outcome, study.cases(), what), strict=True):
            found[f"{what}, M = {M}, {discount:g}"] = value
    return found


def fed_kl(study: Any, outcome: Any) -> dict[str, Any]:
    """Costs of an episode at the end."""
    found = {}
    for step in study.steps:
        for name in ("FedKL", "FedProx", "FedAvg"):
            costs = outcome.arrays[f"{name}, {step:g}"][:, -1]
            of = {"mean": costs.mean(), "median": np.median(costs), "worst": costs.max()}
            found |= {f"{name}, {step:g}, {which}": float(value) for which, value in of.items()}
    return found


def a3c(study: Any, outcome: Any) -> dict[str, Any]:
    """Samples of each worker to the target."""
    return {
        f"{variant}, N = {N}": float(needed.mean())
        for variant in study.variants
        for N, needed in zip(study.agents, study.needed(outcome, variant), strict=True)
    }


def pavg(study: Any, outcome: Any) -> dict[str, Any]:
    """Returns in the nominal environment."""
    cases = [(world, method, k) for world in study.worlds for method in study.methods for k in study.kappas]
    return {f"{w}, {m}, {k:g}": float(outcome.arrays[f"{w}, {m}, {k:g}, centre"].mean()) for w, m, k in cases}


def fast_fedpg(study: Any, outcome: Any) -> dict[str, Any]:
    """Final gaps, the rate, and floors."""
    found = {
        f"{name}, H = {H}, h = {h:g}": abs(study.end(outcome, name, H, h))
        for name in ("LocalSA", "FedHSA")
        for H in study.local_steps
        for h in study.heterogeneity
    }
    found["steps per e"] = 1 / study.rates(outcome, max(study.local_steps))[1]
    found |= {f"floor, N = {N}": float(study.floor(outcome, "FedHSA", N).mean()) for N in study.agents}
    found |= {f"norm, {name}": norm for name, norm in study.norms(outcome).items()}
    return found | {f"gain, {h:g}, {batch}": study.gain(outcome, h, batch) for h, batch in study.noisy}


def fed_svrpg(study: Any, outcome: Any) -> dict[str, Any]:
    """Floors, the effect of clipping, and drifts with exact gradients."""
    from fedhsa.experiments.rl.fed_svrpg import ALL
    from fedhsa.experiments.study import late

    found = {f"floor, N = {N}": float(late(outcome.arrays[f"N = {N}"], 0.5).mean()) for N in study.agents}
    for step in study.step_sizes:
        for when, early in (("early", True), ("late", False)):
            found[f"unclipped, {step:g}, {when}"] = study.unclipped(outcome, step, early=early)
        found[f"gap, all, {step:g}"] = study.gap(outcome, ALL, step)
    for h in study.heterogeneity:
        for name, beta in (("FedPG", 1.0), ("FedSVRPG-M", study.beta)):
            found[f"{name}, h = {h:g}"] = study.drift(outcome, h, beta)
            found[f"{name}, small, h = {h:g}"] = study.drift(outcome, h, beta, study.smaller)
    return found


def fed_pg_br(study: Any, outcome: Any) -> dict[str, Any]:
    """Trajectories to the target, and final returns with 95 % intervals."""
    from fedhsa import statistics
    from fedhsa.experiments.rl.fed_pg_br import BR, PLAIN

    found, many = {}, max(study.agents)
    for method, K in [*((BR, K) for K in study.agents), (PLAIN, many)]:
        needed = study.trajectories(outcome, method, K)
        found[f"{method}, K = {K}"] = statistics.Estimate(*map(float, (needed.mean(), needed.min(), needed.max())))
    for method in (BR, PLAIN):
        for attack in study.attacks:
            found[f"{method}, {attack}, end"] = statistics.mean(study.end(outcome, method, attack), 0.95)
    return found


MORE: dict[str, Callable[[Any, Any], dict[str, Any]]] = {
    "field/adversaries": adversaries,
    "field/boundary": boundary,
    "field/compressed": compressed,
    "field/delays": delays,
    "field/garnet": garnet,
    "field/one-exchange": one_exchange,
    "field/participation": participation,
    "field/personal": personal,
    "field/quadratics": quadratics,
    "field/replay": replay,
    "field/rounds": rounds,
    "field/scaffnew": scaffnew,
    "field/speedup": speedup,
    "field/table1": table1,
    "rl/a3c": a3c,
    "rl/fast-fedpg": fast_fedpg,
    "rl/fed-dvr-q": fed_dvr_q,
    "rl/fed-kl": fed_kl,
    "rl/fed-pg-br": fed_pg_br,
    "rl/fed-svrpg": fed_svrpg,
    "rl/importance": importance,
    "rl/one-shot": one_shot,
    "rl/pavg": pavg,
    "rl/qavg": qavg,
    "rl/sarsa": sarsa,
    "rl/two-phases": two_phases,
}
