import math
import mmap
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedhsa import _programs
from fedhsa._types import precision

ALLOWED = 1000


@pytest.fixture
def process(monkeypatch):
    """A process with the maps that the test gives it, and a clock that never asks to wait."""
    maps = {"now": 0}
    monkeypatch.setattr(_programs, "_allowed", lambda: ALLOWED)
    monkeypatch.setattr(_programs, "_count", lambda: maps["now"])
    monkeypatch.setattr(_programs, "SECONDS", 0.0)
    monkeypatch.setattr(_programs, "_kept", 0)
    return maps


@pytest.fixture
def dropped(monkeypatch):
    calls = []
    monkeypatch.setattr(jax, "clear_caches", lambda: calls.append(1))
    return calls


def test_every_computation_drops_programs_above_the_share_of_maps(process, dropped):
    for maps, times in ((700, 0), (701, 1)):
        process["now"] = maps
        with precision():
            assert len(dropped) == times


def test_maps_of_others_do_not_make_every_call_compile_again(process, dropped):
    process["now"] = 800
    for _ in range(3):
        _programs.make_room()
    assert len(dropped) == 1  # the 800 stayed
    process["now"] = 901
    _programs.make_room()
    assert len(dropped) == 2


def test_maps_are_counted_at_most_once_in_a_while(process, dropped, monkeypatch):
    clock = {"now": 100.0}
    monkeypatch.setattr(_programs, "SECONDS", 5.0)
    monkeypatch.setattr(_programs, "_last_count", 0.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock["now"])
    _programs.make_room()
    process["now"] = ALLOWED
    clock["now"] = 104.9
    _programs.make_room()
    assert not dropped
    clock["now"] = 105.1
    _programs.make_room()
    assert dropped


def test_where_the_system_sets_no_limit_nothing_is_counted(process, dropped, monkeypatch):
    monkeypatch.setattr(_programs, "_allowed", lambda: math.inf)
    monkeypatch.setattr(_programs, "_count", lambda: pytest.fail("there is nothing to count"))
    _programs.make_room()
    assert not dropped


linux = pytest.mark.skipif(math.isinf(_programs._allowed()), reason="only Linux limits the number of maps")


@linux
def test_a_new_map_is_counted_as_one(tmp_path):
    before = _programs._count()
    with (tmp_path / "page").open("w+b") as file:
        file.truncate(mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), 0):
            assert _programs._count() == before + 1


@linux
@pytest.mark.slow
def test_dropped_programs_return_their_maps_and_compute_the_same_again(monkeypatch):
    """Such a program was measured to take 6 maps on JAX 0.10.2 and 13 on 0.12.0.1; half of the lesser is required."""
    x, before = np.ones((4, 4), dtype=np.float32), _programs._count()
    programs = [
        jax.jit(lambda x, n=n: jax.lax.scan(lambda c, _: (jnp.tanh(c @ c), c), x, None, n)) for n in range(1, 41)
    ]
    first = [np.asarray(program(x)[0]) for program in programs]
    full = _programs._count()
    assert full > before + 3 * len(programs)
    monkeypatch.setattr(_programs, "_allowed", lambda: full)
    monkeypatch.setattr(_programs, "_last_count", -math.inf)
    monkeypatch.setattr(_programs, "_kept", 0)
    _programs.make_room()
    assert _programs._count() < full - 3 * len(programs)
    np.testing.assert_array_equal([program(x)[0] for program in programs], first)
