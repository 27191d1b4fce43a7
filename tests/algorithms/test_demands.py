"""What methods demand is data: whatever class declares it is treated alike, and silence is taken at its worst."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from cases import quadratic
from fedhsa.algorithms import AbstractWrapper
from fedhsa.algorithms.demands import RULES, Demand, Effect


class State(eqx.Module):
    """A server state that is no named tuple."""

    theta: Any
    others: dict[str, Any]


class Own(fh.AbstractAlgorithm):
    """The exchanges of another method, as a user would write them; here, with states of their own."""

    method: fh.AbstractAlgorithm
    step_size: float = 0.05

    @property
    def block_length(self):
        return self.method.block_length

    def init(self, theta):
        server, memory = self.method.init(theta)
        return State(server.theta, {"rest": server[1:]}), memory

    @property
    def exchanges(self):
        method = eqx.tree_at(lambda m: m.step_size, self.method, self.step_size)
        method_server = type(method.init(jnp.zeros(1))[0])

        def there(exchange):
            def send(server, round):
                return exchange.send(method_server(server.theta, *server.others["rest"]), round)

            def aggregate(server, replies, round):
                server = method_server(server.theta, *server.others["rest"])
                server = exchange.aggregate(server, replies, round)
                return State(server.theta, {"rest": server[1:]})

            return exchange._replace(send=send, aggregate=aggregate)

        return tuple(there(exchange) for exchange in method.exchanges)


class Accumulating(Own):
    demands = fh.SCAFFOLD.demands


class Undemanding(Own):
    demands = Demand.NOTHING


def test_a_class_with_the_exchanges_and_demands_of_scaffold_is_treated_like_scaffold():
    for wrap in (lambda a: fh.Lossy(a, 0.1), lambda a: fh.OverTheAir(a, 0.1, 0.1), lambda a: fh.Delayed(a, 2)):
        reasons = []
        for algorithm in fh.SCAFFOLD(0.05, 4), Accumulating(fh.SCAFFOLD(0.05, 4)):
            with pytest.raises(TypeError, match="cannot wrap") as refusal:
                wrap(algorithm)
            reasons.append(str(refusal.value).partition(": ")[2])
        assert reasons[0] == reasons[1]
    fh.Partial(Accumulating(fh.SCAFFOLD(0.05, 4)), fh.sampling.Bernoulli(0.5))


def test_several_exchanges_need_not_be_declared():
    own = Undemanding(fh.FedHSA(0.05, 4))
    with pytest.raises(
        TypeError, match="unequal probabilities cannot wrap Undemanding: the method multiplies the averages"
    ):
        fh.Partial(own, fh.sampling.WeightedSampling([0.5, 0.6, 0.7]))
    with pytest.raises(TypeError, match="several exchanges, and each needs the result"):
        fh.Delayed(own, 2)


def test_a_method_that_declares_nothing_is_wrapped_only_by_what_changes_nothing():
    silent = Own(fh.LocalSA(0.05, 4))
    for wrap in (
        lambda: fh.Lossy(silent, 0.1),
        lambda: fh.Weighted(silent, [1.0, 2.0]),
        lambda: fh.Projected(silent, radius=1.0),
        lambda: fh.Gossip(silent, fh.graphs.Ring(3)),
    ):
        with pytest.raises(TypeError, match=r"cannot wrap Own: it does not declare .* `demands = Demand\.NOTHING`"):
            wrap()
    fh.RichardsonRomberg(fh.Averaged(fh.Thinned(silent, 2)))


def test_a_wrapper_that_declares_nothing_goes_only_around_methods_that_demand_nothing():
    class Around(AbstractWrapper):
        algorithm: fh.AbstractAlgorithm

    around = Around(fh.LocalSA(0.05, 4))
    with pytest.raises(TypeError, match="Around cannot wrap SCAFFOLD: Around does not declare its effects"):
        Around(fh.SCAFFOLD(0.05, 4))
    with pytest.raises(TypeError, match="Lossy cannot wrap Around: it does not declare its effects"):
        fh.Lossy(around, 0.1)


def test_every_demand_and_effect_is_in_the_table():
    inside = {flag for rule in RULES[:-4] for flag in rule.inside}
    around = {flag for rule in RULES[:-4] for flag in rule.around}
    assert inside >= set(Demand) - {Demand.UNDECLARED}
    assert inside | around >= set(Effect) - {Effect.UNDECLARED}


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrap",
    [
        lambda a: fh.Projected(a, radius=0.3),
        lambda a: fh.Projected(fh.ServerMomentum(a, 0.5), radius=0.3),
        lambda a: fh.Gossip(fh.ServerMomentum(a, 0.5), fh.graphs.Ring(3)),
        lambda a: fh.RichardsonRomberg(fh.Averaged(fh.Partial(fh.Lossy(a, 0.1), fh.sampling.Bernoulli(0.5)))),
        lambda a: fh.Delayed(fh.Compressed(a, fh.codecs.Sign()), 2, threshold=1.0),
    ],
    ids=["Projected", "ServerMomentum", "Gossip", "RichardsonRomberg", "Delayed"],
)
def test_a_server_state_may_be_any_pytree_with_a_theta(wrap):
    problem, method = quadratic().problem, fh.LocalSA(0.05, 4)
    own = Undemanding(method)
    plain, other = (fh.simulate(problem, wrap(a), rounds=3, record=("theta",)) for a in (method, own))
    np.testing.assert_array_equal(plain.records["theta"], other.records["theta"])


def test_a_server_state_without_a_theta_raises_in_a_sentence():
    class Hidden(Undemanding):
        def init(self, theta):  # pyright: ignore[reportIncompatibleMethodOverride]
            server, memory = self.method.init(theta)
            return {"theta": server.theta}, memory

    hidden = Hidden(fh.LocalSA(0.05, 4))
    for algorithm in hidden, fh.ServerMomentum(hidden, 0.5), fh.RichardsonRomberg(fh.Averaged(hidden)):
        with pytest.raises(
            TypeError,
            match=r"`init` of Hidden .* must return a server state with the parameter, .* got nothing in dict",
        ):
            fh.simulate(quadratic().problem, algorithm, rounds=1)
