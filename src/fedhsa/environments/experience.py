"""The experience that agents learn from."""

from typing import Any, NamedTuple


class Experience(NamedTuple):
    r"""One step of one or several copies of an environment: arrays with a leading axis, one entry per copy.

    Copies that step together are one Markov chain, of which this is one observation; agents average over them.
    """

    features: Any
    r"""$\phi(s)$, `(copies, k)`. Zero if the environment was only reset, so that nothing is learned."""
    action: Any
    """$a$, `(copies,)`."""
    reward: Any
    """$r$, `(copies,)`."""
    discount: Any
    r"""$\gamma$, or 0 if the episode ended in a terminal state. A time limit is not a terminal state."""
    next_features: Any
    r"""$\phi(s')$, also at the end of an episode, where they are not those of the next episode's first state."""
    next_action: Any
    """$a'$, the policy's action in $s'$."""
