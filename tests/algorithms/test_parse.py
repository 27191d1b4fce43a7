import pytest

import fedhsa as fh
from fedhsa.algorithms import parse

DEFAULTS = {"step_size": 0.1, "local_steps": 8, "server_step": 0.5}


def test_what_the_text_leaves_out_comes_from_the_defaults():
    assert parse("FedHSA", **DEFAULTS) == fh.FedHSA(0.1, 8, 0.5)
    assert parse("SynchronisedSA", **DEFAULTS) == fh.SynchronisedSA(0.1)


def test_what_the_text_says_wins():
    assert parse("FedHSA(0.2, server_step=1.0)", **DEFAULTS) == fh.FedHSA(0.2, 8, 1.0)
    schedule = parse("LocalSA(Polynomial(1.0, offset=5.0))", **DEFAULTS)
    assert schedule == fh.LocalSA(fh.Polynomial(1.0, offset=5.0), 8, 0.5)
    blocks = parse("SynchronisedSA(PerBlock((0.1, Polynomial(1.0)), (2, 3)))", **DEFAULTS)
    assert blocks == fh.SynchronisedSA(fh.PerBlock((0.1, fh.Polynomial(1.0)), (2, 3)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("FedHSA(", "must read like"),
        ("fedhsa", "Did you mean 'FedHSA'"),
        ("Elsewhere", "fedhsa list"),
        ("Polynomial(1.0)", "must name an algorithm"),
        ("FedHSA(steps=3)", "unexpected keyword argument 'steps'. Its arguments are step_size, local_steps"),
        ("FedHSA(1 + x)", "neither a name nor a value"),
        ("open('/etc/passwd')", "there is no 'open'"),
        ("FedHSA(step_size=-1)", "must be greater than 0"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_the_reason(text, words):
    with pytest.raises(ValueError, match=r"algorithm|step_size") as refusal:
        parse(text, **DEFAULTS)
    assert words in str(refusal.value)


def test_a_coin_of_an_algorithm_falls_as_often_as_rounds_end_and_others_must_be_given():
    assert parse("Scaffnew", **DEFAULTS) == fh.Scaffnew(0.1, 1 / 8)
    with pytest.raises(ValueError, match=r"Bernoulli needs `probability`"):
        parse("Partial(LocalSA, Bernoulli)", **DEFAULTS)


def test_the_problem_says_what_an_algorithm_has_to_know():
    problem = fh.problems.finite_sum.random(num_agents=5, num_components=3, dim=2)
    assert parse("Gossip(LocalSA, Ring)", problem, **DEFAULTS).graph == fh.graphs.Ring(5)
    assert parse("SynchronisedSA(PerBlock((0.1,)))", problem).step_size.sizes == (2,)
    assert parse("MCSAG", problem.iid(), **DEFAULTS) == fh.MCSAG(0.1, 3, 8)


def test_a_missing_argument_is_named():
    with pytest.raises(ValueError, match=r"FedHSA needs `local_steps`"):
        parse("FedHSA(0.1)")
