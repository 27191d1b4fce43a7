"""The truth about any method on small chains: its own rounds, run on every joint path of the agents' chains.

A round is an affine map of everything that server and agents carry, for every path and every outcome of a shared coin.
The sum over paths of the products of these maps, each with its probability, is the exact map of the second moments on
the joint states. Only the algorithms are of the package.
"""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import fedhsa as fh
from fedhsa._types import precision
from fedhsa.algorithms.play import one_seed, play, start
from fedhsa.sources import FiniteChain, Transition

CHUNK = 512


class Truth:
    """All moments of `(z, 1)` on the joint states, where `z` is the state minus that of a run at the root.

    `coins` are the outcomes of a shared coin with their probabilities.
    """

    def __init__(self, problem, algorithm, coins=((None, 1.0),)):
        source = problem.agents.source
        self.pairs = not isinstance(source, FiniteChain)
        chain = source.chain if self.pairs else source
        self.P, self.pi = np.asarray(chain.transition), np.asarray(chain.stationary)
        self.shape, self.algorithm, self.coins = (self.P.shape[-1],) * problem.num_agents, algorithm, coins
        with precision():
            self.agents = fh.tree.to_device(problem.flat_agents, "float64")
            root = jnp.asarray(problem.root, "float64")
            numbers, self.rest = eqx.partition(start(algorithm, root, problem.num_agents), eqx.is_inexact_array)
            self.base, self.unravel = ravel_pytree(numbers)
            self.spread = np.asarray(jax.jacfwd(self._begin)(root))
            self.show = np.asarray(jax.jacfwd(lambda z: self._state(z)[0].theta)(self.base))
            self._enumerate()

    def _begin(self, theta):
        begun = start(self.algorithm, theta, len(self.shape))
        return ravel_pytree(eqx.filter(begun, eqx.is_inexact_array))[0]

    def _state(self, z):
        return eqx.combine(self.unravel(z), self.rest)

    def _after(self, z, block, index, coin):
        M = len(self.shape)
        shared = fh.algorithms.Round(index, jax.random.key(0), num_agents=M, coin=coin)
        keys = jax.random.split(jax.random.key(1), M)
        done = play(self.algorithm, one_seed(self.agents, block, shared, keys), *self._state(z))
        return ravel_pytree(eqx.filter(done, eqx.is_inexact_array))[0]

    def _enumerate(self):
        M, n = len(self.shape), self.algorithm.block_length
        paths = np.array(list(itertools.product(range(self.shape[0]), repeat=n + 1)))
        seen = paths[np.array(list(itertools.product(range(len(paths)), repeat=M)))]  # (joint paths, M, n + 1)
        now, then = seen[..., :-1], seen[..., 1:]
        self.chance = np.prod([self.P[i][now[:, i], then[:, i]] for i in range(M)], axis=(0, 2))
        self.block = Transition(now, then) if self.pairs else now
        self.ends = [np.ravel_multi_index(seen[..., k].T, self.shape) for k in (0, -1)]
        self.first, self.later = (self._moments(index) for index in (0, 7))

    def _moments(self, index):
        """The map of second moments from each joint state to each."""
        found, J = {}, int(np.prod(self.shape))
        for coin, probability in self.coins:
            maps = self._maps(index, None if coin is None else jnp.asarray(coin))
            for s, t in itertools.product(range(J), repeat=2):
                which = (self.ends[0] == s) & (self.ends[1] == t)
                weighted = (probability * self.chance[which])[:, None, None] * maps[which]
                found[t, s] = found.get((t, s), 0) + np.einsum("pab,pcd->acbd", weighted, maps[which], optimize=True)
        return found

    def _maps(self, index, coin):
        """The affine map of `(z, 1)` on every joint path."""
        N = len(self.base)
        states = self.base[None] + jnp.eye(N + 1, N)
        run = jax.jit(jax.vmap(lambda b: jax.vmap(lambda z: self._after(z, b, index, coin))(states)))
        parts = [
            jax.tree.map(lambda x, at=at: x[at : at + CHUNK], self.block) for at in range(0, len(self.chance), CHUNK)
        ]
        ends = np.concatenate([np.asarray(run(part)) for part in parts])
        found = np.zeros((len(ends), N + 1, N + 1))
        found[:, :N, N] = ends[:, -1] - np.asarray(self.base)
        found[:, :N, :N] = np.swapaxes(ends[:, :-1] - ends[:, -1:], 1, 2)
        found[:, N, N] = 1
        return found

    def path(self, error, rounds):
        """The mean-square errors of a run from the root plus `error`, with stationary chains."""
        law = np.ones(1)
        for pi in self.pi:
            law = np.kron(law, pi)
        x = np.append(self.spread @ error, 1.0)
        Y = law[:, None, None] * np.outer(x, x)
        found = [self._square(Y)]
        for t in range(rounds):
            after = np.zeros_like(Y)
            for (to, since), map in (self.later if t else self.first).items():
                after[to] += np.einsum("acbd,bd->ac", map, Y[since])
            Y = after
            found.append(self._square(Y))
        return np.array(found)

    def _square(self, Y):
        return float(np.trace(self.show @ Y.sum(0)[:-1, :-1] @ self.show.T))
