import jax
import numpy as np
import pytest

import fedhsa as fh

PROBLEM = fh.problems.quadratic.random(2, 2)
OPTIONS = {"rounds": 4, "seeds": 2, "key": 3}


def test_a_sweep_is_its_single_runs_and_compiles_one_program_for_each_static_value(caplog):
    over = {"step_size": [0.01, 0.02, 0.04], "local_steps": [2, 3]}
    with jax.log_compiles():
        found = fh.sweep(PROBLEM, fh.Averaged(fh.FedHSA(0.5, 7)), over, **OPTIONS)
    assert sum("Compiling jit(advance)" in record.message for record in caplog.records) == 2
    assert [tuple(s.values()) for s in found.settings] == [(e, H) for e in over["step_size"] for H in (2, 3)]
    alone = fh.simulate(PROBLEM, fh.Averaged(fh.FedHSA(0.02, 3)), **OPTIONS)
    np.testing.assert_array_equal(found.results[3].error, alone.error)
    rows = found.rows()
    assert rows[3]["error"] == alone.error[:, -1].mean()
    assert rows[3]["low"] < rows[3]["error"] < rows[3]["high"]
    least = min(rows, key=lambda row: row["error"])
    assert found.best == {name: least[name] for name in over}
    assert found.to_pandas()["local_steps"].tolist() == [2, 3] * 3
    assert repr(found).splitlines()[0].split() == ["step_size", "local_steps", "error", "low", "high", "diverged"]
    figure = found.plot()
    assert figure.axes[0].get_xlabel() == r"step size $\eta$"
    assert [text.get_text() for text in figure.legends[0].get_texts()[:2]] == ["local steps 2", "local steps 3"]


def test_a_sweep_over_arguments_of_the_problem_makes_one_for_each_and_keeps_what_is_done():
    made, kept = [], []

    def build(num_agents: int = 9, dim: int = 2) -> fh.Problem:
        made.append(num_agents)
        return fh.problems.quadratic.random(num_agents, dim)

    over = {"num_agents": [1, 2], "step_size": [0.01, 0.02]}
    found = fh.sweep(build, fh.FedHSA(0.5, 3), over, so_far=lambda sweep: kept.append(len(sweep.results)), **OPTIONS)
    assert made == [1, 2]
    assert kept == [1, 2, 3]
    alone = fh.simulate(fh.problems.quadratic.random(1, 2), fh.FedHSA(0.02, 3), **OPTIONS)
    np.testing.assert_array_equal(found.results[1].error, alone.error)
    with pytest.raises(
        ValueError, match=r"no setting 'agents'.* It has step_size, .*, and the problem num_agents, dim"
    ):
        fh.sweep(build, fh.FedHSA(0.5, 3), {"agents": [1]}, **OPTIONS)


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"stepsize": [0.1]}, r"`over`: FedHSA has no setting 'stepsize'. Did you mean 'step_size'\? It has step_size"),
        ({"step_size": []}, r"`over` must map settings to lists"),
        ({}, r"`over` must map settings"),
        ({"step_size": 0.1}, r"`over` must map settings"),
        ({"step_size": "0.1"}, r"`over` must map settings"),
        ({"local_steps": [1, 0]}, r"`local_steps` must be at least 1, got 0"),
    ],
)
def test_a_sweep_over_what_is_not_there_raises_before_anything_runs(over, message):
    with pytest.raises(ValueError, match=message):
        fh.sweep(PROBLEM, fh.FedHSA(0.1, 2), over, **OPTIONS)
