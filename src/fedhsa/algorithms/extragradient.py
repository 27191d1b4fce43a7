"""Local steps along the operator a step ahead, for games and other operators that rotate."""

import jax

from .base import Exchange
from .demands import Demand
from .local import AbstractServerStep, send_theta
from .local_sa import Server
from .schedules import step_at


class ExtragradientSA(AbstractServerStep):
    r"""Local SA whose every step looks ahead first: extragradient.

    $$\theta' = \theta + \eta\, G_i(\theta, o_{i,2\ell}), \qquad
      \theta \leftarrow \theta + \eta\, G_i(\theta', o_{i,2\ell+1}), \quad \ell = 0, \dots, H-1$$

    and the server adds $\alpha_g$ times the mean displacement. Steps along a rotation (a bilinear game) turn outwards
    however small they are; with a look ahead they turn inwards. Each step takes two observations and two evaluations.
    With heterogeneous agents and $H > 1$ it has a bias like Local SA's.

    The paper averages the first operator over a batch and takes the second from batches of random length
    (`MultilevelSA` has these); here both are single observations.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.
    - `local_steps`: $H$, the steps of each agent per round.
    - `server_step`: $\alpha_g$.

    !!! example
        >>> J = [[[[0.01, 1.0], [-1.0, 0.01]]]]  # nearly x y, which one player minimises and the other maximises
        >>> game = fedhsa.problems.games.from_arrays(J, z=[[[0.0, 0.0]]], P=[[[1.0]]])
        >>> for method in fedhsa.LocalSA(0.1, local_steps=1), ExtragradientSA(0.1, local_steps=1):
        ...     result = fedhsa.simulate(game, method, rounds=100, theta=np.ones(2))
        ...     print(type(method).__name__, result.error[0, -1].round(1))
        LocalSA 4.4
        ExtragradientSA 0.6

    !!! cite "Korpelevich (1976); for Markov data Beznosikov et al. (2023), arXiv:2305.15938"
    """

    demands = Demand.NOTHING

    @property
    def block_length(self):
        return 2 * self.local_steps

    def init(self, theta):
        return Server(theta), ()

    @property
    def exchanges(self):
        return (Exchange("delta", send_theta, self._local_steps, self._move, mean_suffices=True),)

    def _local_steps(self, theta_bar, memory, agent, block, round):
        eta = step_at(self.step_size, round.index)

        def step(theta, pair):
            first, second = (jax.tree.map(lambda x, i=i: x[i], pair) for i in range(2))
            ahead = agent.project(theta + eta * agent.operator(theta, agent.observe(theta, first)))
            return agent.project(theta + eta * agent.operator(ahead, agent.observe(ahead, second))), None

        pairs = jax.tree.map(lambda x: x.reshape(self.local_steps, 2, *x.shape[1:]), block)
        theta, _ = jax.lax.scan(step, theta_bar, pairs, length=self.local_steps)
        return theta - theta_bar, memory
