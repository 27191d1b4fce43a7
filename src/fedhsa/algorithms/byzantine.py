"""Byzantine agents, whose replies differ from those of the method."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .. import _check
from .._random import Stream, fold_in
from .attacks import AbstractAttack
from .base import Round, own_key
from .demands import Effect
from .wrapper import AbstractWrapper, check_one_per_exchange


class Byzantine(AbstractWrapper):
    r"""Some agents are Byzantine: they compute like the others but send different replies.

    A Byzantine agent's memory follows the method; only its reply changes, before anything happens to it on the way. The
    wrapper is innermost except for `Robust`: `Partial(Compressed(Byzantine(...), ...), ...)`. It supports every method
    whose replies are messages, including those that no robust rule can protect, such as SCAFFLSA. The attacks use only
    the agent's own reply; attacks that depend on the replies of honest agents are not included.

    **Arguments:**

    - `algorithm`: the method.
    - `share`: the share of agents that are Byzantine, which are then the last ones; or a tuple of their numbers, from
      0.
    - `attack`: one of `fedhsa.attacks`; or a tuple with one for each exchange, where None is an honest reply.

    Raises `ValueError` if `share` or `attack` is not valid, and `TypeError` if the method has no messages to change or
    the attack does not fit the problem.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=20, dim=3).noiseless()
        >>> method, flip = fedhsa.FedHSA(0.02, local_steps=5), fedhsa.attacks.SignFlip(30.0)
        >>> one_of_twenty = Byzantine(method, 0.05, (flip, None))         # in the first exchange, that of operators
        >>> fedhsa.simulate(problem, one_of_twenty, rounds=100).status.tolist()
        ['diverged']
        >>> Byzantine(method, (0, 7), flip).share                         # these two agents, in both exchanges
        (0, 7)

    !!! cite "Attacks as in Fan et al. (2021), FedPG-BR, arXiv:2110.14074"
    """

    share: Any = eqx.field(converter=_check.counts)
    attack: Any = eqx.field(converter=lambda attack: tuple(attack) if isinstance(attack, list) else attack)

    effects = Effect.CHANGES_REPLIES
    stage = Stream.ATTACK

    def __check_init__(self):
        if isinstance(self.share, tuple):
            for number in self.share:
                _check.count("share", number, least=0, remedy="A tuple has the agents' numbers.")
        else:
            _check.scalar("share", self.share, above=0.0, below=1.0, remedy="Use a share, or agents' numbers.")
        check_one_per_exchange("attack", self.attack, self.algorithm, AbstractAttack, "`SignFlip()`")

    def hostile(self, number: Any, num_agents: int) -> Any:
        """Whether the agent of this number is Byzantine."""
        if isinstance(self.share, tuple):
            return jnp.isin(number, jnp.asarray(self.share))
        number = jnp.asarray(number)
        return number >= num_agents - jnp.floor(self.share * num_agents + 0.5).astype(number.dtype)

    def check(self, problem):
        self.algorithm.check(problem)
        M = problem.num_agents
        attacks = self.attack if isinstance(self.attack, tuple) else (self.attack,)
        if any(a is not None and a.needs_policy for a in attacks) and not problem.agents.learns_policy:
            raise TypeError(f"`attack` requires agents that act by a policy, got {type(problem.agents).__name__}.")
        if isinstance(self.share, tuple):
            for number in self.share:
                _check.number("share", number, most=M - 1, remedy=f"There are agents 0 to {M - 1}.")
        elif not _check.traced(self.share) and not self.share * M + 0.5 >= 1:
            raise ValueError(f"`share` of {self.share:g} selects no agent among {M}. Use {1 / M:g} for one agent.")

    def _around(self, exchange, number):
        attack = self.attack[number] if isinstance(self.attack, tuple) else self.attack
        if attack is None:
            return exchange

        def local(message, memory, agent, block, round: Round):
            hostile = self.hostile(round.agent, round.num_agents)
            reply, memory = exchange.local(message, memory, attack.agent(agent, hostile), block, round)
            key = own_key(round.agent_key, Stream.ATTACK, number)
            leaves, structure = jax.tree.flatten(reply)
            sent = [jnp.where(hostile, attack(fold_in(key, i), x).astype(x.dtype), x) for i, x in enumerate(leaves)]
            return structure.unflatten(sent), memory

        return exchange._replace(local=local)
