"""Agent-steps per second of FedHSA on the device JAX finds, with and without fused kernels, next to the limit."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import tyro

import fedhsa as fh
from fedhsa import kernels
from fedhsa._types import precision
from machine import RESULTS, cores, load, write

H = 10
REPETITIONS = 50
"""The number of runs of a single kernel in its measurement."""


@dataclass(frozen=True)
class Accelerator:
    """Prints and writes agent-steps per second for each problem and number of seeds."""

    td: tuple[int, ...] = (1, 32, 256, 1024, 4096)
    """seeds on the paper's TD problem"""
    quadratic: tuple[int, ...] = (32, 4096, 32768)
    """seeds on the paper's quadratic"""
    finite_sum: tuple[int, ...] = (32, 256)
    """seeds on the paper's finite sum"""
    rounds: int = 400
    dtypes: tuple[str, ...] = ("float32",)
    plain: bool = True
    """measure the plain steps as well"""
    quick: bool = False
    """tiny problems, to check that everything works"""
    out: Path = RESULTS
    """the folder to write to"""

    def run(self) -> None:
        sizes = ((4, 10, 3), (4, 3), (4, 2, 20)) if self.quick else ((200, 100, 50), (20, 10), (200, 2, 200))
        makers = fh.problems.td.random, fh.problems.quadratic.random, fh.problems.finite_sum.random
        all_seeds = ((2,),) * 3 if self.quick else (self.td, self.quadratic, self.finite_sum)
        names, steps = ("TD", "quadratic", "finite sum"), (0.01, 0.001, 0.001)
        rounds = 4 if self.quick else self.rounds
        rows = []
        for name, make, size, seeds_of, step_size in zip(names, makers, sizes, all_seeds, steps, strict=True):
            problem = make(*size)
            for dtype in self.dtypes:
                for seeds in seeds_of:
                    rows.append(self._row(name, problem, dtype, seeds, step_size, rounds))
                    print(sentence(rows[-1]), flush=True)
        device = f"{jax.devices()[0].device_kind}, JAX {jax.__version__}"
        out = self.out / "quick" if self.quick else self.out
        where = {"processor": device, "cores": cores(), "load": load()}
        write(__file__, out, where, {"rounds": rounds, "rows": rows}, {"": table(rows)})

    def _row(self, name: str, problem: fh.Problem, dtype: str, seeds: int, step_size: float, rounds: int) -> dict:
        row: dict[str, Any] = {"problem": name, "dtype": dtype, "seeds": seeds}
        row["speed"], row["compile"] = agent_steps_per_second(problem, dtype, seeds, step_size, rounds)
        if self.plain:
            with kernels.without():
                row["plain"], _ = agent_steps_per_second(problem, dtype, seeds, step_size, rounds)
        if name == "TD":
            per_round = problem.num_agents * H * seeds / row["speed"]
            row["bandwidth_share"] = least_bytes(problem, dtype, seeds) / per_round / copy_bandwidth()
            row["bound"] = local_phase_alone(problem, dtype, seeds)
        return row


def agent_steps_per_second(problem: fh.Problem, dtype: str, seeds: int, step_size: float, rounds: int):
    """Returns the speed of the second of two calls, which compiles nothing, and the compilation time of the first."""
    compiled, timings = 0.0, {}
    for factor in (1.0, 1.01):
        algorithm = fh.FedHSA(step_size * factor, local_steps=H)
        options = {"seeds": seeds, "rounds": rounds, "every": rounds // 2, "dtype": dtype, "progress": False}
        timings = fh.simulate(problem, algorithm, **options).timings
        compiled = compiled or timings["compile"]
    return problem.num_agents * H * rounds * seeds / timings["run"], compiled


def least_bytes(problem: fh.Problem, dtype: str, seeds: int) -> int:
    """Returns the bytes that a round of TD must move between its kernels: all agents' operators (written once, read
    twice) and parameters (once each), and each observation's random words, states, next states and rewards (once each
    way)."""
    number = 4 if dtype == "float32" else 8
    of_agent = 5 * problem.dim * number + 2 * H * (4 * 4 + number)
    return problem.num_agents * seeds * of_agent


def copy_bandwidth(size: int = 2**28) -> float:
    """Returns the bytes per second that a large copy reads and writes on this device."""
    x = jnp.zeros(size // 4, jnp.float32)
    repeated = jax.jit(lambda x: jax.lax.fori_loop(0, REPETITIONS, lambda _, x: x + 1, x))
    return 2 * size * REPETITIONS / seconds(repeated, x)


def local_phase_alone(problem: fh.Problem, dtype: str, seeds: int) -> float | None:
    """Returns the agent-steps per second of the hand-written kernel of local steps alone, for given observations."""
    backend = kernels.backend_of(jax.devices()[0].platform)
    if backend is None:
        return None
    with precision(dtype):
        agents = fh.tree.to_device(problem.agents, dtype)
        keys = jax.random.split(jax.random.key(0), (problem.num_agents, seeds))

        def draw(agent, key):
            return agent.source.draw(jax.random.split(key, H), agent.source.init(key))[1]

        block = jax.jit(jax.vmap(jax.vmap(draw, (None, 0)), (0, 0)))(agents, keys)
        theta = jnp.zeros((problem.num_agents, seeds, problem.dim), dtype)

        def steps(agent, theta, block):
            return kernels.take_steps(agent.form(block), theta, 0.01, theta, None, 0, H)

        @jax.jit
        def repeated(agents, theta, block):
            with kernels.using(backend):
                all_steps = jax.vmap(jax.vmap(steps, (None, 0, 0)))
                return jax.lax.fori_loop(0, REPETITIONS, lambda _, theta: all_steps(agents, theta, block), theta)

        return problem.num_agents * seeds * H * REPETITIONS / seconds(repeated, agents, theta, block)


def seconds(function: Callable, *arguments: Any) -> float:
    """Returns the run time of the second call."""
    jax.block_until_ready(function(*arguments))
    began = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - began


def sentence(row: dict) -> str:
    """Returns one row as a printed line."""
    text = f"{row['problem']}, {row['dtype']}, seeds {row['seeds']}: {row['speed']:.3g} agent-steps a second"
    if "plain" in row:
        text += f", {row['speed'] / row['plain']:.2f} times the plain steps"
    if "bandwidth_share" in row:
        text += f", {row['bandwidth_share']:.0%} of the memory's bandwidth"
    if row.get("bound"):
        text += f"; the kernel of local steps alone {row['bound']:.3g}"
    return text + f"; compiled in {row['compile']:.1f} s"


def table(rows: list[dict]) -> list[tuple[str, ...]]:
    """Returns the rows as text, headings first."""
    headings = ("problem", "dtype", "seeds", "fedhsa", "plain steps", "ratio", "bandwidth", "local steps alone")
    found: list[tuple[str, ...]] = [headings]
    for row in rows:
        plain = (f"{row['plain']:.2g}", f"{row['speed'] / row['plain']:.2f}") if "plain" in row else ("", "")
        share = f"{row['bandwidth_share']:.0%}" if "bandwidth_share" in row else ""
        bound = f"{row['bound']:.2g}" if row.get("bound") else ""
        found.append((row["problem"], row["dtype"], str(row["seeds"]), f"{row['speed']:.2g}", *plain, share, bound))
    return found


if __name__ == "__main__":
    tyro.cli(Accelerator).run()
