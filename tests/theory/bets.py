"""The federations on which predictions are tested, and what simulation says of those too large to enumerate.

`python -m theory.bets` in `tests/` simulates them anew and writes `simulated.json`: some minutes on sixteen cores.
"""

import itertools
import json
import multiprocessing
import pathlib
import zlib
from typing import NamedTuple

import numpy as np

import fedhsa as fh
from theory import enumeration
from theory.enumeration import Rule

RECORDED = pathlib.Path(__file__).with_name("simulated.json")
ACCURACY = 0.006
"""The relative standard error that the number of simulated rounds aims at."""


class Federation(NamedTuple):
    """A problem as the arrays of its family's `from_arrays`, in their order."""

    family: str
    arrays: tuple[np.ndarray, ...]

    def agents(self):
        """The agents, seen from the root, and the root."""
        return {"td": enumeration.td_agents, "finite-sum": enumeration.finite_sum_agents}[self.family](*self.arrays)

    @property
    def problem(self):
        """The problem of the package."""
        return {"td": fh.problems.td, "finite-sum": fh.problems.finite_sum}[self.family].from_arrays(*self.arrays)


def tiny(family, M, stay, seed=0):
    """Two states and two dimensions; `stay` is .5 for independent states. The agents are heterogeneous."""
    drawn = []
    for i in range(M):
        rng = np.random.default_rng([seed, i])
        if family == "td":
            often = rng.uniform(0.35, 0.65)  # how often the chain is in its first state
            P = np.array([[often, 1 - often]] * 2)
            features = np.eye(2) + rng.uniform(-0.5, 0.5, (2, 2))
            rest = (rng.uniform(0, 2, 2), features, rng.uniform(0.5, 0.9))
            drawn.append((_lazy(P, 2 * stay - 1), *rest))
        else:
            P = _lazy(np.full((2, 2), 0.5), 2 * stay - 1)
            drawn.append((_symmetric(rng, 2, 2, -0.5, 2.0), rng.normal(size=(2, 2)), P))
    return Federation(family, tuple(np.array(x) for x in zip(*drawn, strict=True)))


def many(family, M, mixing):
    """TD with four states or sums of three components, three dimensions, heterogeneous agents, fast or lazy (.9)."""
    drawn, stay = [], {"fast": 0.0, "lazy": 0.9}[mixing]
    for i in range(M):
        rng = np.random.default_rng([7, i])
        if family == "td":
            P = rng.uniform(0.1, 1, (4, 4))
            rest = (rng.uniform(0, 2, 4), rng.normal(size=(4, 3)) * 0.8, rng.uniform(0.5, 0.9))
            drawn.append((_lazy(P / P.sum(1, keepdims=True), stay), *rest))
        else:
            cycle = np.eye(3)[[1, 2, 0]]
            P = sum(w * np.linalg.matrix_power(cycle, k) for k, w in enumerate(rng.dirichlet(np.full(3, 5.0))))
            drawn.append((_symmetric(rng, 3, 3, 0.2, 1.5), rng.normal(size=(3, 3)), _lazy(P, stay)))
    return Federation(family, tuple(np.array(x) for x in zip(*drawn, strict=True)))


def equal(M):
    """`M` times the same TD agent on two states that it leaves with chances .08 and .12."""
    P, features = np.array([[0.92, 0.08], [0.12, 0.88]]), np.array([[1.0, 0.2], [-0.3, 0.9]])
    return Federation("td", tuple(np.array([x] * M) for x in (P, np.array([0.0, 2.0]), features, 0.5)))


def diverging(M, stay=0.95):
    """A scalar sum whose slopes, -.3 and 1.5, pull together only on average."""
    A, b = np.array([-0.3, 1.5]).reshape(2, 1, 1), np.array([[1.0], [-1.0]])
    P = _lazy(np.full((2, 2), 0.5), 2 * stay - 1)
    return Federation("finite-sum", tuple(np.repeat(x[None], M, axis=0) for x in (A, b, P)))


def harsh(M):
    """Scalar sums like `diverging`, heterogeneous agents: the noise of their matrices exceeds their mean slope."""
    P = _lazy(np.full((2, 2), 0.5), 0.9)
    drawn = []
    for i in range(M):
        rng = np.random.default_rng([8, i])
        slopes = np.array([-0.3, 1.5]) + rng.uniform(-0.1, 0.1, 2)
        drawn.append((slopes.reshape(2, 1, 1), rng.normal(size=(2, 1)), P))
    return Federation("finite-sum", tuple(np.array(x) for x in zip(*drawn, strict=True)))


def _lazy(P, stay):
    return stay * np.eye(len(P)) + (1 - stay) * P


def _symmetric(rng, count, d, low, high):
    """Symmetric matrices with eigenvalues between `low` and `high`."""
    Q = np.linalg.qr(rng.normal(size=(count, d, d)))[0]
    return (Q * rng.uniform(low, high, (count, 1, d))) @ np.swapaxes(Q, 1, 2)


class Case(NamedTuple):
    """A federation by name, and a rule."""

    family: str
    kind: str
    M: int
    method: str
    H: int
    step_size: float

    @property
    def federation(self):
        if self.kind in ("fast", "lazy"):
            return many(self.family, self.M, self.kind)
        return {"equal": equal, "harsh": harsh}[self.kind](self.M)

    @property
    def rule(self):
        return Rule(self.step_size, self.H, 1.0, {"FedHSA": 1.0, "LocalSA": 0.0}[self.method])

    @property
    def name(self):
        return f"{self.family} {self.kind} M={self.M} {self.method}({self.step_size}, {self.H})"


MANY = [
    Case(*case)
    for case in itertools.product(
        ["td", "finite-sum"], ["fast", "lazy"], [16, 64, 256], ["FedHSA", "LocalSA"], [1, 10, 20], [0.05, 0.2]
    )
    if case[3:5] != ("LocalSA", 1)  # the same as FedHSA
]
EQUAL = [
    Case("td", "equal", M, method, 20, eta) for M in (64, 256) for method in ("FedHSA", "LocalSA") for eta in (0.1, 0.3)
]
HARSH = [
    Case("finite-sum", "harsh", M, method, H, eta)
    for M in (16, 64)
    for method, H in (("FedHSA", 1), ("FedHSA", 10), ("LocalSA", 10))
    for eta in (0.05, 0.1, 0.2)
]


def half(cases, which):
    """One half of the cases, 0 or 1, by their names: laws are proven by enumeration, and simulation confirms many."""
    return [case for case in cases if zlib.crc32(case.name.encode()) % 2 == which]


TRANSIENTS = [case for case in MANY if case.M == 16]
ROUNDS = 30
"""Of a transient, from the parameter 0."""


def work(case):
    """Burn-in and rounds for the long run, and seeds."""
    agents, _ = case.federation.agents()
    A = np.mean([np.einsum("s,st,stab->ab", enumeration.stationary(a.P), a.P, a.A) for a in agents], axis=0)
    chain = max(1 / (1 - np.sort(abs(np.linalg.eigvals(a.P)))[-2]) for a in agents)
    slowest = max(1 / (case.step_size * case.H * -np.linalg.eigvals(A).real.max()), 1 + chain / case.H)
    seeds = max(64, 4096 // case.M)
    return int(9 * slowest) + 5, int(2 / ACCURACY**2 * slowest / seeds) + 50, seeds


def record(case):
    """What a simulation finds of the long run, and of the first rounds where they are asked for."""
    agents, root = case.federation.agents()
    burn_in, rounds, seeds = work(case)
    rng = np.random.default_rng(list(case.name.encode()))
    found = enumeration.long_run(agents, case.rule, burn_in=burn_in, rounds=rounds, seeds=seeds, rng=rng)._asdict()
    if case in TRANSIENTS:
        paths = enumeration.simulate(agents, case.rule, -root, seeds=6000, rng=rng)
        squares = np.array([(e**2).sum(0) for e in itertools.islice(paths, ROUNDS + 1)])
        found["error"], found["error_se"] = enumeration.mean_and_error(squares)
    return case.name, {name: _short(values) for name, values in found.items()}


def _short(values):
    """Numbers with six digits, as JSON has them."""
    return [_short(x) for x in values] if np.ndim(values) else float(f"{values:.6g}")


def recorded():
    """By the name of a case, what simulation found."""
    return json.loads(RECORDED.read_text())


if __name__ == "__main__":
    cases = sorted(
        MANY + EQUAL + HARSH, key=lambda case: -np.prod([float(x) for x in work(case)[1:]]) * case.M * case.H
    )
    found = {}
    with multiprocessing.Pool() as pool:
        for name, numbers in pool.imap_unordered(record, cases, chunksize=1):
            found[name] = numbers
            print(f"{len(found)}/{len(cases)} {name}: {numbers['floor']:.4g} +- {numbers['floor_se']:.1g}", flush=True)
    lines = [f"{json.dumps(case.name)}: {json.dumps(found[case.name])}" for case in MANY + EQUAL + HARSH]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
