"""Local SA that averages after irregular gaps."""

import itertools

import equinox as eqx

from .. import _check, tree
from .base import Exchange
from .demands import Demand
from .local import AbstractMethod, local_steps, move, send_theta
from .schedules import step_at


class GappedSA(AbstractMethod):
    r"""Local SA that averages after irregular gaps, which repeat.

    The gaps have $g_1$ steps, then $g_2$ steps, and so on.
    With the local fixed-point operators $T_i$ and $G_i = T_i - I$, the method is
    $x_i \leftarrow (1-\eta) x_i + \eta\, T_i(x_i)$ at every step, and $x_i \leftarrow \frac1M \sum_j x_j$ at the times
    $t_n$. One round is one pass through the gaps, with an exchange at the end of each gap. Equal gaps are `LocalSA`,
    whose bias it shares.

    **Arguments:**

    - `step_size`: $\eta$, the paper's relaxation $\lambda$; a number or a schedule.
    - `gaps`: $t_1 - t_0, t_2 - t_1, \dots$, the number of local steps before each averaging.

    Raises `ValueError` if `step_size` is not positive or `gaps` is not a tuple of positive whole numbers.

    !!! example
        >>> algorithm = GappedSA(0.02, gaps=(2, 5, 3))
        >>> fedhsa.cost(fedhsa.problems.quadratic.random(num_agents=4, dim=3), algorithm)
        Cost(exchanges=3, floats_down=9, floats_up=9, samples=10, evaluations=10)

    !!! cite "Malinovsky, Kovalev, Gasanov, Condat, Richtárik (2020), arXiv:2004.01442, Algorithm 1"
    """

    gaps: tuple[int, ...] = eqx.field(static=True, converter=_check.counts)

    demands = Demand.NOTHING

    def __check_init__(self):
        if not isinstance(self.gaps, tuple) or not self.gaps:
            raise ValueError(f"`gaps` must be a tuple of whole numbers, got {self.gaps!r}. Use for instance (2, 5, 3).")
        for gap in self.gaps:
            _check.count("gaps", gap, remedy="Each gap is a number of local steps.")

    @property
    def block_length(self):
        return sum(self.gaps)

    @property
    def exchanges(self):
        starts = itertools.accumulate(self.gaps[:-1], initial=0)
        return tuple(self._exchange(start, gap) for start, gap in zip(starts, self.gaps, strict=True))

    def _exchange(self, start, gap):
        def local(theta_bar, memory, agent, block, round):
            part = tree.take(block, slice(start, start + gap))
            theta = local_steps(agent, theta_bar, part, step_at(self.step_size, round.index), gap)
            return theta - theta_bar, memory

        return Exchange(f"delta {start}", send_theta, local, move, mean_suffices=True)
