"""Agents for tests that kill their processes: at an exact point of an answer, or for want of a file."""

import os
import pathlib
import signal

import numpy as np

from fedhsa import tree
from fedhsa.deploy import AbstractStream, AgentContext, Live, Site
from fedhsa.problems import quadratic


def build(context: AgentContext):
    """An agent whose process dies in the ways that `config["deaths"]` lists as (agent, phase, count)."""
    needed = context.config.get("needs")
    if needed and context.number in context.config["needing"] and not pathlib.Path(needed).exists():
        raise FileNotFoundError("the data are not there")
    if "deaths" in context.config:
        _make_mortal(context.config["deaths"], pathlib.Path(context.config["graves"]))
    return agent(context.number)


def agent(number: int):
    """The agent itself."""
    return tree.take(quadratic.random(num_agents=5, dim=3, key=2).flat_agents, number)


def live(context: AgentContext):
    """An agent that observes a stream which counts."""
    return Live(agent(context.number), Counting(context.number))


class Counting(AbstractStream):
    """Noise that depends on how often it was drawn, in this process and in those before it."""

    def __init__(self, number: int):
        self.count, self.number = 0, number

    @property
    def like(self):
        return np.zeros(3)

    def draw(self, generator, length):
        self.count += 1
        return np.sin(self.count + self.number) + 0.1 * generator.normal(size=(length, 3))

    def save(self):
        return {"count": np.asarray(self.count)}

    def restore(self, saved):
        self.count = int(saved["count"])


def _make_mortal(deaths, graves: pathlib.Path) -> None:
    if hasattr(Site, "mortal"):
        return
    Site.mortal, answer, counts = True, Site.answer, {}

    def answer_or_die(self, data):
        first = int(self.numbers[0])

        def pass_phase(phase):
            counts[phase] = counts.get(phase, 0) + 1
            for number, when, count in deaths:
                grave = graves / f"{number}-{when}-{count}"
                if (first, phase, counts[phase]) == (number, when, count) and not grave.exists():
                    grave.touch()
                    os.kill(os.getpid(), signal.SIGKILL)

        self.phase = pass_phase
        return answer(self, data)

    Site.answer = answer_or_die
