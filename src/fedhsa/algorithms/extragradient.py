"""Extragradient: local steps along the operator one step ahead, for games and other operators that rotate."""

import jax

from .demands import Demand
from .local import AbstractServerStep
from .schedules import step_at


class ExtragradientSA(AbstractServerStep):
    r"""Local SA in which every step first looks ahead: extragradient.

    $$\theta' = \theta + \eta\, G_i(\theta, o_{i,2\ell}), \qquad
      \theta \leftarrow \theta + \eta\, G_i(\theta', o_{i,2\ell+1}), \quad \ell = 0, \dots, H-1$$

    The server then adds $\alpha_g$ times the mean displacement. Plain steps along a rotation (a bilinear game) spiral
    outwards at every step size; with the look-ahead they spiral inwards. Each step takes two observations and two
    evaluations. With heterogeneous agents and $H > 1$ the method has a bias like Local SA's.

    The paper averages the first operator over a batch and takes the second from batches of random length (as in
    `MultilevelSA`); here both are single observations.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.
    - `local_steps`: $H$, the number of steps of each agent per round.
    - `server_step`: $\alpha_g$, the step size of the server.

    Raises `ValueError` if a step size is not positive or `local_steps` is less than 1.

    !!! example
        >>> J = [[[[0.01, 1.0], [-1.0, 0.01]]]]  # nearly the game x y, min over x and max over y
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

    def _local_steps(self, theta_bar, memory, agent, block, round):
        eta = step_at(self.step_size, round.index)

        def step(theta, pair):
            first, second = (jax.tree.map(lambda x, i=i: x[i], pair) for i in range(2))
            ahead = agent.project(theta + eta * agent.operator(theta, agent.observe(theta, first)))
            return agent.project(theta + eta * agent.operator(ahead, agent.observe(ahead, second))), None

        pairs = jax.tree.map(lambda x: x.reshape(self.local_steps, 2, *x.shape[1:]), block)
        theta, _ = jax.lax.scan(step, theta_bar, pairs, length=self.local_steps)
        return theta - theta_bar, memory
