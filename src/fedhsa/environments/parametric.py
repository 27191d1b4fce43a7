"""Policies that are learned directly: the distribution of the action, given a parameter and an observation."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .. import _check
from .._random import as_key
from .._types import Key, SeedLike


class AbstractParametricPolicy(eqx.Module):
    r"""The distribution $\pi_\theta(\cdot \mid s)$ of the action given an observation; the parameter is any pytree.

    Your own policy defines the initial parameter, the sampling of an action, its log-probability, and the divergence
    between two policies.
    """

    @property
    @abc.abstractmethod
    def start(self) -> PyTree:
        """The initial parameter of a run; all parameters have its shape."""

    @abc.abstractmethod
    def sample(self, theta: Any, seen: Any, key: Key, /) -> Any:
        """Samples an action; the key is a folded threefry key, so its data are themselves random bits."""

    @abc.abstractmethod
    def log_prob(self, theta: Any, seen: Any, action: Any, /) -> Any:
        r"""Returns $\log \pi_\theta(a \mid s)$."""

    @abc.abstractmethod
    def kl(self, old: Any, new: Any, seen: Any, /) -> Any:
        r"""Returns $KL(\pi_\text{old} \,\|\, \pi_\text{new})$ in one state."""

    def project(self, theta: Any, /) -> Any:
        """Returns the nearest valid parameter; by default all parameters are valid."""
        return theta


class AbstractCategorical(AbstractParametricPolicy):
    """A policy that chooses among finitely many actions."""

    @abc.abstractmethod
    def log_chances(self, theta: Any, seen: Any, /) -> Any:
        """Returns the logarithms of the actions' probabilities, `(actions,)`."""

    def chances(self, theta: Any, seen: Any, /) -> Any:
        """Returns the actions' probabilities, `(actions,)`."""
        return jnp.exp(self.log_chances(theta, seen))

    def sample(self, theta, seen, key, /):
        reached = jnp.cumsum(self.chances(theta, seen))
        point = (jax.random.key_data(key)[0].astype(reached.dtype) + 0.5) * 2.0**-32
        return jnp.sum(reached[:-1] <= point).astype(jnp.int32)

    def log_prob(self, theta, seen, action, /):
        return self.log_chances(theta, seen)[action]

    def kl(self, old, new, seen, /):
        before, after = self.log_chances(old, seen), self.log_chances(new, seen)
        # An action with probability 0 contributes nothing to the divergence.
        apart = jnp.where(jnp.isneginf(before), 0.0, before - after)
        return jnp.sum(jnp.exp(before) * apart)


class AbstractTable(AbstractCategorical):
    """A policy on finitely many states, with a number for each pair of state and action."""

    num_states: int = eqx.field(static=True)
    num_actions: int = eqx.field(static=True)

    def __check_init__(self):
        _check.count("num_states", self.num_states)
        _check.count("num_actions", self.num_actions)


class SoftmaxTable(AbstractTable):
    r"""$\pi_\theta(a \mid s) \propto e^{\theta_{s,a}}$ on finitely many states, a number for each pair.

    **Arguments:**

    - `num_states`, `num_actions`: the numbers of states and actions.

    !!! example
        >>> policy = SoftmaxTable(num_states=3, num_actions=2)
        >>> policy.start.shape
        (3, 2)
        >>> np.exp(policy.log_chances(policy.start, 0)).tolist()
        [0.5, 0.5]
    """

    @property
    def start(self):
        return np.zeros((self.num_states, self.num_actions))

    def log_chances(self, theta, seen, /):
        return jax.nn.log_softmax(theta[seen])


class DirectTable(AbstractTable):
    r"""$\pi_\theta(a \mid s) = \theta_{s,a}$: the parameter is the table of probabilities itself.

    Steps leave the set of these tables; `project` returns the nearest table, row by row.

    **Arguments:**

    - `num_states`, `num_actions`: the numbers of states and actions.

    !!! example
        >>> policy = DirectTable(num_states=1, num_actions=3)
        >>> np.asarray(policy.project(np.array([[1.0, 0.5, -0.5]]))).tolist()
        [[0.75, 0.25, 0.0]]
    """

    @property
    def start(self):
        return np.full((self.num_states, self.num_actions), 1 / self.num_actions)

    def log_chances(self, theta, seen, /):
        # The logarithm of 0 has no derivative, which would make the other derivatives NaN.
        taken = theta[seen] > 0
        return jnp.where(taken, jnp.log(jnp.where(taken, theta[seen], 1.0)), -jnp.inf)

    def chances(self, theta, seen, /):
        return theta[seen]  # which also has a derivative at 0

    def project(self, theta, /):
        return jax.vmap(nearest_law)(theta)


class Categorical(AbstractCategorical):
    r"""A policy whose logits are the output of a network: $\pi_\theta(\cdot \mid s) = \mathrm{softmax}(f_\theta(s))$.

    **Arguments:**

    - `network`: an Equinox module that takes an observation and returns a number for each action. Its arrays are the
      parameter, and their values are the initial parameter.

    !!! example
        >>> policy = Categorical(mlp(4, 2, width=8, depth=2, key=0))         # for a cart pole
        >>> sum(leaf.size for leaf in jax.tree.leaves(policy.start))
        130
    """

    arrays: PyTree
    skeleton: Any = eqx.field(static=True)

    def __init__(self, network: Any):
        self.arrays, self.skeleton = _parts(network)

    @property
    def start(self):
        return self.arrays

    def log_chances(self, theta, seen, /):
        return jax.nn.log_softmax(eqx.combine(theta, self.skeleton)(seen.astype(_dtype(theta))))


class Gaussian(AbstractParametricPolicy):
    r"""A Gaussian policy: a network gives the mean of the action, whose standard deviation is the same in all states.

    $a \sim N(f_\theta(s), \mathrm{diag}\, e^{2\rho})$; the parameter is `{"network": ..., "log_std": ...}`, the arrays
    of the network and $\rho$.

    **Arguments:**

    - `network`: an Equinox module that takes an observation and returns a number for each coordinate of the action.
    - `size`: the number of these coordinates.
    - `log_std`: the initial value of $\rho$.

    !!! example
        >>> policy = Gaussian(mlp(3, 1, width=16, depth=1, key=0), size=1, log_std=-0.5)
        >>> policy.start["log_std"]
        array([-0.5])
    """

    arrays: PyTree
    log_std: np.ndarray
    skeleton: Any = eqx.field(static=True)

    def __init__(self, network: Any, size: int, log_std: float = 0.0):
        self.arrays, self.skeleton = _parts(network)
        self.log_std = np.full(_check.count("size", size), float(log_std))

    @property
    def start(self):
        return {"network": self.arrays, "log_std": self.log_std}

    def mean(self, theta: Any, seen: Any, /) -> Any:
        """Returns the mean action."""
        return eqx.combine(theta["network"], self.skeleton)(seen.astype(_dtype(theta)))

    def sample(self, theta, seen, key, /):
        mean = self.mean(theta, seen)
        return mean + jnp.exp(theta["log_std"]) * jax.random.normal(key, mean.shape, mean.dtype)

    def log_prob(self, theta, seen, action, /):
        scaled = (action - self.mean(theta, seen)) * jnp.exp(-theta["log_std"])
        return -jnp.sum(scaled**2 / 2 + theta["log_std"] + np.log(2 * np.pi) / 2)

    def kl(self, old, new, seen, /):
        ratio = jnp.exp(2 * (old["log_std"] - new["log_std"]))
        apart = (self.mean(old, seen) - self.mean(new, seen)) * jnp.exp(-new["log_std"])
        return jnp.sum(ratio + apart**2 - 1 - jnp.log(ratio)) / 2


def mlp(inputs: int, outputs: int, *, width: int = 16, depth: int = 2, key: SeedLike = 0) -> Any:
    """Returns a small network with tanh units, for `Categorical` and `Gaussian`.

    **Arguments:**

    - `inputs`, `outputs`: the sizes of the input and of the output.
    - `width`, `depth`: the width and the number of the hidden layers.
    - `key`: the key of the initial weights.

    !!! example
        >>> mlp(4, 2, width=8, depth=1)(np.zeros(4)).shape
        (2,)
    """
    sizes = (("inputs", inputs), ("outputs", outputs), ("width", width), ("depth", depth))
    for name, size in sizes:
        _check.count(name, size)
    return eqx.nn.MLP(inputs, outputs, width, depth, activation=jnp.tanh, key=as_key(key))


def nearest_law(row: Any) -> Any:
    r"""Returns the probability vector nearest to a vector in the Euclidean norm.

    $p_a = \max(x_a - \tau, 0)$ with the unique $\tau$ for which the entries add up to 1.

    !!! example
        >>> nearest_law(np.array([2.0, 0.0])).tolist()
        [1.0, 0.0]

    !!! cite "Held, Wolfe, Crowder (1974); the algorithm by sorting as in Duchi et al. (2008), Figure 1"
    """
    row = jnp.asarray(row)
    falling = -jnp.sort(-row)
    excess = (jnp.cumsum(falling) - 1) / jnp.arange(1, len(row) + 1, dtype=row.dtype)
    kept = jnp.sum(falling > excess)
    return jnp.maximum(row - excess[kept - 1], 0)


def _parts(network: Any) -> tuple[PyTree, Any]:
    """Returns the arrays of a network, in double precision, and its other parts."""
    if not isinstance(network, eqx.Module):
        raise TypeError(f"`network` must be an Equinox module, got {network!r}. For instance `mlp(4, 2)`.")
    arrays, skeleton = eqx.partition(network, eqx.is_inexact_array)
    return jax.tree.map(lambda leaf: np.asarray(leaf, dtype=np.float64), arrays), skeleton


def _dtype(theta: Any) -> Any:
    return jax.tree.leaves(theta)[0].dtype
