"""`simulate`: a problem, an algorithm, and many rounds and seeds as one compiled program."""

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
from . import checkpoint as checkpoints
from . import placement
from .live import LiveRun, check_live
from .peers import lost_if_silent
from .progress import ShowProgress, progress_bar
from .record import Record, resolve
from .result import Result
from .run import Run

POSITIONS = 2**32
"""How many places in a trajectory have random numbers of their own."""
SEGMENT_SECONDS = 0.5
"""How long the compiled program runs before Python looks up, for progress, checkpoints and Ctrl-C."""
SEGMENT_SECONDS_TOGETHER = 2.0
"""The same where several processes wait for each other then: the shorter, the more they lose by small differences."""


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
    debug: bool = False,
) -> Result:
    r"""Runs `algorithm` on `problem`, many seeds at once.

    The same key gives the same numbers, and two algorithms with the same key see the same observations. Live agents
    (`Live`) observe running environments, of which every seed has copies of its own, stepped together in Python; only
    the rounds are compiled.

    **Arguments:**

    - `rounds`: $T$.
    - `seeds`: how many independent runs; seed `s` is the same whatever their number.
    - `key`: an int or a JAX key.
    - `theta`: where to start, shaped like the problem's parameter. Default: the problem's `start`, zeros for most.
    - `record`: what to keep besides the error: names (`"theta"`, `"operator_norm"`), or a dictionary from names to such
      names or to functions of a `Snapshot`. Where the problem has no root, the norm of the average operator takes the
      place of the error.
    - `every`: keep only every so many rounds; `rounds` must be a multiple.
    - `dtype`: `"float64"` or `"float32"`.

    **Long runs:**

    - `checkpoint`, `checkpoint_every`: a file to save the whole state to, after every so many rounds (default: about
      twenty times a run). With `resume=True` the same call continues from it, bit for bit; it may ask for more rounds.
    - `progress`: True or False for a progress bar; by default on a terminal only. Or a function, called about twice a
      second with the number of rounds done; an exception it raises ends the run. Ctrl-C gives back what there is, with
      `result.complete` False.

    **You probably do not need these:**

    - `chunk`: how many seeds run together. Default: as many as fit in memory.
    - `devices`: where to run. Default: all of JAX's; agents and seeds are spread over them.
    - `debug`: no compilation, one agent at a time, and errors that name agent, exchange and round. Slow.

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
        raise ValueError("`debug=True` keeps no checkpoint. Leave one of the two out.")
    if resume and checkpoint is None:
        raise ValueError("`resume=True` needs `checkpoint`, the file to continue from.")
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
        plan = {"rounds": rounds, "chunk": chunk, "checkpoint": [checkpoint is None, checkpoint_every, resume]}
        run.peers.same({**settings, **plan, "device": None})
        if debug:
            for seed in range(seeds):
                run.debug(seed, rounds)
            return run.result(settings, price)
        restored = None
        with contextlib.nullcontext() if checkpoint is None else checkpoints.claimed(checkpoint, run.peers):
            if checkpoint is not None:
                restored = checkpoints.prepare(checkpoint, settings["fingerprint"], rounds, resume, run.peers)
            run.begin(chunk, restored)
            complete = _loop(run, rounds, checkpoint, checkpoint_every, settings, price, progress)
        return run.result(settings, price, complete)


def _loop(
    run: Run,
    rounds: int,
    checkpoint: str | os.PathLike | None,
    checkpoint_every: int | None,
    settings: dict[str, Any],
    price: Callable[[], Cost],
    progress: ShowProgress,
) -> bool:
    """Advances in segments until the end; gives False when interrupted on the way."""
    save_every, seconds_per_record = rounds, None
    segment_seconds = SEGMENT_SECONDS if run.peers.alone else SEGMENT_SECONDS_TOGETHER
    if checkpoint is not None:
        save_every = max(checkpoint_every or rounds // 20, run.every) // run.every * run.every

    def save() -> None:
        if checkpoint is not None:
            saved = run.saved()  # in every process, since each has a part of it
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
                if run.round in (until, rounds):
                    save()
    except KeyboardInterrupt:
        save()
        if run.peers.first:
            warnings.warn(f"Interrupted after round {run.round} of {rounds}: the result ends there.", stacklevel=3)
        return False
    return True


def check_length(problem: Problem, needed: int) -> None:
    """Raises if more observations are needed than were recorded, or than can be told apart."""
    if needed >= POSITIONS:
        raise ValueError(
            f"`rounds` asks for {needed} observations of each agent, of which at most {POSITIONS - 1} are independent: "
            "then their random numbers would begin again. Ask for fewer rounds, or continue from `theta` with another "
            "`key`."
        )
    available = tree.take(problem.agents, 0).source.length
    if available is not None and needed > available:
        raise ValueError(
            f"`rounds` asks for {needed} observations of each agent, but the source has {available}. "
            "Ask for fewer rounds, or replay with `wrap=True`."
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
    """A digest of all that determines the numbers; raises if part of it cannot be described."""
    parts = {"problem": problem, "algorithm": algorithm, "theta": theta, "record": recorders}
    plain = {name: settings[name] for name in ("key", "seeds", "every", "dtype", "versions")}
    return digest([digest(value, name) for name, value in parts.items()] + [plain], "settings")
