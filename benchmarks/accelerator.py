"""Agent-steps per second of FedHSA on the paper's TD problem, on whatever device JAX finds, as the seeds grow."""

import json
import pathlib
from dataclasses import dataclass

import jax
import tyro

import fedhsa as fh


@dataclass(frozen=True)
class Accelerator:
    """Prints and writes agent-steps per second for each number of seeds."""

    seeds: tuple[int, ...] = (1, 32, 256, 1024, 4096)
    rounds: int = 200
    dtypes: tuple[str, ...] = ("float32", "float64")
    out: pathlib.Path = pathlib.Path("benchmarks/results/accelerator.json")

    def run(self) -> None:
        problem = fh.problems.td.random(num_agents=200, num_states=100, dim=50)
        rows = []
        for dtype in self.dtypes:
            for seeds in self.seeds:
                compiled = None
                for step_size in (0.001, 0.0011):  # the second call compiles nothing
                    algorithm = fh.FedHSA(step_size, local_steps=10)
                    options = {"seeds": seeds, "rounds": self.rounds, "every": self.rounds // 2, "dtype": dtype}
                    result = fh.simulate(problem, algorithm, **options)
                    compiled = compiled or result.timings["compile"]
                speed = problem.num_agents * 10 * self.rounds * seeds / result.timings["run"]
                rows.append({"dtype": dtype, "seeds": seeds, "agent_steps_per_second": speed, "compile": compiled})
                print(
                    f"{dtype} {seeds:5d} seeds: {speed:.3g} agent-steps a second, compiled in {compiled:.1f} s",
                    flush=True,
                )
        device = f"{jax.devices()[0].device_kind}, JAX {jax.__version__}"
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_text(json.dumps({"device": device, "rows": rows}, indent=2))
        print(device)


if __name__ == "__main__":
    tyro.cli(Accelerator).run()
