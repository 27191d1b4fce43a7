"""Predictions of steps that change in stages: the laws of constant steps, each going on where the one before ends."""

import bisect
import dataclasses
from collections.abc import Sequence

from ..algorithms import AbstractAlgorithm, Stages
from .laws.moments import AbstractSteppedLaw
from .prediction import Prediction


class StagedLaw(AbstractSteppedLaw):
    """Laws of constant steps, one after the other.

    What one law keeps is what the next one needs, moments on the states of chains included, so that nothing is lost
    when the step changes: the law is exact where the others are.
    """

    def __init__(self, laws: Sequence[AbstractSteppedLaw], begins: Sequence[int]):
        self.laws, self.begins = laws, begins
        self.basis, self.left_out = laws[-1].basis, max(law.left_out for law in laws)

    @property
    def quick(self):
        return all(law.quick for law in self.laws)

    def enter(self, start):
        return 0, self.laws[0].enter(start)

    def step(self, state):
        rounds, inner = state
        return rounds + 1, self.laws[bisect.bisect_right(self.begins, rounds)].step(inner)

    def seen(self, state):
        return self.laws[-1].seen(state[1])

    def stationary(self):
        return self.laws[-1].stationary()

    def mean_square_radius(self):
        return self.laws[-1].mean_square_radius()

    def mean_radius(self):
        return self.laws[-1].mean_radius()

    def persistent_bias(self):
        return self.laws[-1].persistent_bias()


@dataclasses.dataclass(frozen=True)
class StagedPrediction(Prediction):
    """A prediction of steps in stages: the way there is that of all of them, the long run that of the last."""

    last: Prediction = dataclasses.field(repr=False)

    @property
    def max_step_size(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """Of the last stage."""
        return self.last.max_step_size

    @property
    def max_local_steps(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """Of the last stage."""
        return self.last.max_local_steps


def staged(algorithm: AbstractAlgorithm, schedule: Stages, predictions: Sequence[Prediction]) -> StagedPrediction:
    """The prediction of an algorithm from those of its stages."""
    laws, last = [prediction.law for prediction in predictions], predictions[-1]
    stepped = [law for law in laws if isinstance(law, AbstractSteppedLaw)]
    if len(stepped) < len(laws) or len({type(law) for law in laws}) > 1:
        raise TypeError(
            f"The law of {type(algorithm).__name__} on this problem cannot be followed through steps that change. "
            "Predict the first and the last of them."
        )
    known = {field.name: getattr(last, field.name) for field in dataclasses.fields(Prediction)}
    law = StagedLaw(stepped, schedule.begins)
    return StagedPrediction(**known | {"algorithm": algorithm, "law": law, "left_out": law.left_out}, last=last)
