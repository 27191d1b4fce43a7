"""What an environment gives to learn from."""

from typing import Any, NamedTuple


class Experience(NamedTuple):
    r"""One step of one or several copies of an environment: arrays with a leading axis, one entry per copy.

    Copies that step together are one Markov chain, of which this is one observation; agents average over them.
    """

    features: Any
    r"""$\phi(s)$, `(copies, k)`. Zero where the environment was only reset: nothing is learned from that."""
    action: Any
    """$a$, `(copies,)`."""
    reward: Any
    """$r$, `(copies,)`."""
    discount: Any
    r"""$\gamma$, or 0 where the episode ended in a terminal state. A time limit is no terminal state."""
    next_features: Any
    r"""$\phi(s')$, also where the episode ended: never those of the state in which the next one begins."""
    next_action: Any
    """$a'$, what the policy does in $s'$."""
