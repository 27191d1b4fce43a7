"""`simulate` runs an algorithm on a problem, with all rounds and seeds in one compiled program."""

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .. import _check, tree
from .._describe import digest, plain_settings
from .._random import as_key, key_words
from .._types import Device, SeedLike, precision
from .._version import versions
from ..algorithms import AbstractAlgorithm, Cost, adapt, cost
from ..problems import Problem
from ..tracking.base import AbstractTracker
from . import checkpoint as checkpoints
from . import placement
from .following import Following, follow
from .live import LiveRun, check_live
from .peers import lost_if_silent
from .progress import ShowProgress, progress_bar
from .record import Record, resolve
from .result import Result
from .run import Run

POSITIONS = 2**32
"""The number of positions in a trajectory that have distinct random numbers."""
SEGMENT_SECONDS = 0.5
"""The compiled program runs for about this long before Python handles progress, checkpoints and Ctrl-C."""
SEGMENT_SECONDS_TOGETHER = 2.0
"""The same for several processes. They wait for each other after each segment, so short segments cost them more."""


def simulate(
    problem: Problem,
    algorithm: AbstractAlgorithm,
    *,
    rounds: int,
    seeds: int = 1,
    key: SeedLike = 0,
    theta: Any = None,
    record: Record = (),
    every: int = 1,
    dtype: str = "float64",
    checkpoint: str | os.PathLike | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    chunk: int | None = None,
    devices: Sequence[Device] | None = None,
    progress: ShowProgress = None,
    tracker: AbstractTracker | None = None,
    debug: bool = False,
) -> Result:
    r"""Runs `algorithm` on `problem` with many seeds at once.

    The same key gives the same numbers, and two algorithms with the same key see the same observations. Live agents
    (`Live`) observe running environments. Each seed has its own copies of them, which are stepped together in Python,
    and only the rounds are compiled.

    **Arguments:**

    - `problem`: the problem to solve.
    - `algorithm`: the method to run.
    - `rounds`: the number of rounds, $T$.
    - `seeds`: the number of independent runs. Seed `s` gives the same run for any number of seeds.
    - `key`: an int or a JAX key.
    - `theta`: the initial parameter, with the shape of the problem's parameter. Defaults to the problem's `start`,
      which is zero for most problems.
    - `record`: the quantities to record in addition to the error: names (`"theta"`, `"operator_norm"`), or a dictionary
      that maps names to such names or to functions of a `Snapshot`. If the problem has no root, the norm of the average
      operator is recorded instead of the error.
    - `every`: record only every `every` rounds. `rounds` must be a multiple of it.
    - `dtype`: `"float64"` or `"float32"`.

    **Long runs:**

    - `checkpoint`, `checkpoint_every`: a file in which the whole state is saved every `checkpoint_every` rounds (by
      default about twenty times per run).
    - `resume`: continue from `checkpoint`, bit for bit. Otherwise the call must be the same, except that it may request
      more rounds.
    - `progress`: True or False for a progress bar; by default it is shown only on a terminal. It can also be a
      function, which is called about twice a second with the number of completed rounds. An exception in it ends the
      run.
    - `tracker`: a tracker, such as `fedhsa.tracking.TensorBoard("logs")`, that follows the run while it goes on. It
      gets the mean over seeds of every number recorded, about twice a second and for at most 1000 rounds. It does not
      change the results, and if it fails, a warning reports it and the run continues.

    **You probably do not need these:**

    - `chunk`: the number of seeds that run together. Defaults to as many as fit in memory.
    - `devices`: the devices to run on. Defaults to all of JAX's devices; agents and seeds are spread over them.
    - `debug`: run one agent at a time without compilation, so that errors name the agent, exchange and round. Slow.

    **Returns:** a `Result`. After Ctrl-C it holds the rounds completed so far, and `result.complete` is False.

    Raises `ValueError` if the arguments contradict each other, if the algorithm does not support the problem, if the
    sources hold fewer observations than the run needs, or if `checkpoint` belongs to another run.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=5, num_states=10, dim=4)
        >>> result = fedhsa.simulate(problem, fedhsa.FedHSA(0.05, local_steps=5), rounds=20, seeds=3, key=1)
        >>> result.error.shape
        (3, 21)
    """
    for name, value in (("rounds", rounds), ("seeds", seeds), ("every", every)):
        _check.count(name, value)
    if rounds % every:
        raise ValueError(f"`rounds` must be a multiple of `every`, got {rounds} and {every}.")
    if debug and checkpoint is not None:
        raise ValueError("`debug=True` does not support `checkpoint`. Leave one of the two out.")
    if resume and checkpoint is None:
        raise ValueError("`resume=True` requires `checkpoint`, the file to continue from.")
    if checkpoint_every is not None:
        _check.count("checkpoint_every", checkpoint_every)
    adapted = adapt(algorithm, problem)
    check_length(problem, rounds * algorithm.block_length)
    recorders = resolve(record, problem)
    theta = problem.start if theta is None else tree.ravel_like("theta", theta, problem.like)
    devices = list(devices) if devices is not None else jax.devices()
    live = problem.streams is not None
    if live:
        check_live(problem, checkpoint is not None, debug)
        devices = devices[:1]
    settings = _settings(problem, algorithm, key, seeds, every, dtype, list(recorders))
    settings["device"] = placement.describe(devices)
    if checkpoint is not None:
        settings["fingerprint"] = _fingerprint(problem, algorithm, theta, recorders, settings)

    def price() -> Cost:
        return cost(problem, algorithm)

    with precision(dtype), lost_if_silent():
        kind = LiveRun if live else Run
        run = kind(problem, adapted, theta, as_key(key), seeds, every, dtype, recorders, devices)
        following = Following(tracker, run, rounds)
        plan = {"rounds": rounds, "chunk": chunk, "checkpoint": [checkpoint is None, checkpoint_every, resume]}
        plan["tracked"] = following.active
        run.peers.same({**settings, **plan, "device": None})
        if debug:
            for seed in range(seeds):
                run.debug(seed, rounds)
            result = run.result(settings, price)
            if tracker is not None:
                follow(result, tracker)
            return result
        restored = None
        with contextlib.nullcontext() if checkpoint is None else checkpoints.claimed(checkpoint, run.peers):
            if checkpoint is not None:
                restored = checkpoints.prepare(checkpoint, settings["fingerprint"], rounds, resume, run.peers)
            run.begin(chunk, restored)
            with following.failing():
                following.begin(settings | {"rounds": rounds}, resumed=restored is not None)
                complete = _loop(run, rounds, checkpoint, checkpoint_every, settings, price, progress, following)
        result = run.result(settings, price, complete)
        following.end(result)
        return result


def _loop(
    run: Run,
    rounds: int,
    checkpoint: str | os.PathLike | None,
    checkpoint_every: int | None,
    settings: dict[str, Any],
    price: Callable[[], Cost],
    progress: ShowProgress,
    following: Following,
) -> bool:
    """Advances in segments until the end. Returns False if it was interrupted."""
    save_every, seconds_per_record = rounds, None
    segment_seconds = SEGMENT_SECONDS if run.peers.alone else SEGMENT_SECONDS_TOGETHER
    if checkpoint is not None:
        save_every = max(checkpoint_every or rounds // 20, run.every) // run.every * run.every

    def save() -> None:
        if checkpoint is not None:
            saved = run.saved()  # in every process, since each holds a part of it
            if saved is not None:
                so_far = run.result_of(saved, settings, price, complete=run.round == rounds)
                checkpoints.write(checkpoint, saved, so_far, settings["fingerprint"])

    show = progress if run.peers.first else False
    try:
        with progress_bar(settings["algorithm"]["name"], rounds, show) as update, run.peers.stop_together() as asked:
            run.compile()
            while run.round < rounds:
                until = min(rounds, (run.round // save_every + 1) * save_every)
                records = (until - run.round) // run.every
                if seconds_per_record is None:
                    records = 1
                else:
                    records = max(1, min(records, int(segment_seconds / seconds_per_record)))
                records, stop, all_diverged = run.agree(records, asked())
                if stop:
                    raise KeyboardInterrupt
                if all_diverged:
                    run.fill(rounds)
                else:
                    began = time.perf_counter()
                    run.advance(records)
                    seconds_per_record = (time.perf_counter() - began) / records
                update(run.round)
                following.update()  # before the state is saved, so that a resumed run finds all of it in the track
                if run.round in (until, rounds):
                    save()
    except KeyboardInterrupt:
        following.update()
        save()
        if run.peers.first:
            warnings.warn(f"Interrupted after round {run.round} of {rounds}: the result ends there.", stacklevel=3)
        return False
    return True


def check_length(problem: Problem, needed: int) -> None:
    """Raises if the run needs more observations than were recorded, or than have distinct random numbers."""
    if needed >= POSITIONS:
        raise ValueError(
            f"`rounds` requires {needed} observations of each agent, but random numbers repeat after {POSITIONS - 1}. "
            "Request fewer rounds, or continue from `theta` with another `key`."
        )
    available = tree.take(problem.agents, 0).source.length
    if available is not None and needed > available:
        raise ValueError(
            f"`rounds` requires {needed} observations of each agent, but the source has {available}. "
            "Request fewer rounds, or replay with `wrap=True`."
        )


def _settings(problem, algorithm, key, seeds: int, every: int, dtype: str, recorded: list[str]) -> dict[str, Any]:
    """The settings as plain values, for manifests."""
    return {
        "algorithm": plain_settings(algorithm),
        "problem": {
            "agent": type(problem.agents).__name__,
            "num_agents": problem.num_agents,
            "dim": problem.dim,
            **({} if problem.names is None else {"names": list(problem.names)}),
        },
        "key": key_words(key),
        "seeds": seeds,
        "every": every,
        "dtype": dtype,
        "recorded": recorded,
        "versions": versions(),
    }


def _fingerprint(problem, algorithm, theta, recorders: dict[str, Callable], settings: dict[str, Any]) -> str:
    """A digest of everything that determines the numbers. Raises if a part of it cannot be described."""
    parts = {"problem": problem, "algorithm": algorithm, "theta": theta, "record": recorders}
    plain = {name: settings[name] for name in ("key", "seeds", "every", "dtype", "versions")}
    return digest([digest(value, name) for name, value in parts.items()] + [plain], "settings")
