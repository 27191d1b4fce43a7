"""Predictions for step sizes that change in stages, by joining the laws of constant step sizes."""

import bisect
import dataclasses
from collections.abc import Sequence

from ..algorithms import AbstractAlgorithm, Stages
from .laws.moments import AbstractSteppedLaw
from .prediction import Prediction


class StagedLaw(AbstractSteppedLaw):
    """A sequence of laws of constant step sizes.

    The state of each law, including moments on the states of chains, is the initial state of the next one. So nothing
    is lost when the step size changes: the law is exact if all its parts are.
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


@dataclasses.dataclass(frozen=True, repr=False)
class StagedPrediction(Prediction):
    """A prediction for step sizes in stages: error curves cover all stages, the long run is that of the last stage."""

    last: Prediction = dataclasses.field(repr=False)

    @property
    def max_step_size(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """The limit of the last stage."""
        return self.last.max_step_size

    @property
    def max_local_steps(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """The limit of the last stage."""
        return self.last.max_local_steps


def staged(algorithm: AbstractAlgorithm, schedule: Stages, predictions: Sequence[Prediction]) -> StagedPrediction:
    """Combines the predictions of an algorithm's stages."""
    laws, last = [prediction.law for prediction in predictions], predictions[-1]
    stepped = [law for law in laws if isinstance(law, AbstractSteppedLaw)]
    if len(stepped) < len(laws) or len({type(law) for law in laws}) > 1:
        raise TypeError(
            f"The law of {type(algorithm).__name__} on this problem does not support step sizes that change. "
            "Predict the first and the last step size separately."
        )
    known = {field.name: getattr(last, field.name) for field in dataclasses.fields(Prediction)}
    law = StagedLaw(stepped, schedule.begins)
    return StagedPrediction(**known | {"algorithm": algorithm, "law": law, "left_out": law.left_out}, last=last)
