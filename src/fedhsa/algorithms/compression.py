"""Compressed replies, with a memory of the parts that were left out."""

from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
from jaxtyping import PyTree

from .. import _check
from .._random import Stream
from .base import Coded, Round
from .channel import zero_replies
from .codecs import AbstractCodec
from .demands import Effect
from .wrapper import AbstractWrapper


class Memory(NamedTuple):
    """The inner algorithm's memory and, for each exchange, the parts that the codec left out, or the reference."""

    inner: Any
    kept: tuple[PyTree, ...]


class Compressed(AbstractWrapper):
    r"""Every vector that agents send is coded separately in every exchange; a memory corrects for coding errors.

    With error feedback the agent adds the parts that the codec $C$ has left out so far to its reply $x$,

    $$h = C(e + x), \qquad e \leftarrow e + x - h,$$

    and with differences it codes the difference between $x$ and a reference $v$ that the server has from earlier
    replies,

    $$h = C(x - v), \qquad \hat x = v + h, \qquad v \leftarrow v + \beta h,$$

    where $\beta$ is 1 for contractive codecs and $1/(1 + c)$ for unbiased ones. Each exchange has a separate memory.

    Compressed FedHSA codes operators and displacements. An agent's operator does not vanish at $\theta^\star$ (only
    their average does), so the error of coding it does not vanish either. Without noise, and at step sizes at which
    FedHSA itself is stable:

    - Without memory, a contractive codec converges to a wrong point that does not depend on the step size, and an
      unbiased one fluctuates with a squared error of order $\eta$.
    - With error feedback, the server's sum is eventually correct but late, which leaves a squared error of order
      $\eta^2$, and no error in the mean of the parameters over rounds. A smaller error would remain there if agents
      subtracted the operator they sent instead of their own.
    - With differences, the references converge to the operators at $\theta^\star$, and the limit is $\theta^\star$.

    These orders follow from heuristic arguments and are observed in simulation; there is no theorem for FedHSA. The
    same holds for synchronised SA with heterogeneous agents. With noise the references follow the noise as well, and
    error feedback may end nearer to the root: compare them.

    **Arguments:**

    - `algorithm`: the algorithm whose replies are coded.
    - `codec`: one of `fedhsa.codecs`, for instance `TopK(0.1)`.
    - `feedback`: `"error"`, `"difference"` or `"none"`; defaults to `"error"` for biased codecs and `"none"` for
      unbiased ones. Error feedback requires a codec with $c < 1$.

    Raises `ValueError` if `codec` or `feedback` is not valid, and `TypeError` if the algorithm requires exact replies.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> algorithm = Compressed(fedhsa.FedHSA(0.02, local_steps=5), fedhsa.codecs.TopK(0.34), feedback="difference")
        >>> bool(fedhsa.simulate(problem.noiseless(), algorithm, rounds=1000).error[0, -1] < 1e-20)
        True
        >>> fedhsa.cost(problem, algorithm).floats_up           # 66 bits for each of two numbers
        2.0625

    !!! cite "Mitra, Pappas, Hassani (2024), EF-TD; Mishchenko et al. (2019), DIANA; Richtárik et al. (2021), EF21"
    """

    codec: AbstractCodec
    feedback: Literal["error", "difference", "none"] | None = eqx.field(static=True, default=None)

    stage = Stream.CODING

    def __check_init__(self):
        if not isinstance(self.codec, AbstractCodec):
            raise ValueError(f"`codec` must be a codec, got {self.codec!r}. For instance `TopK(0.1)`.")
        if self.feedback is not None:
            _check.choice("feedback", self.feedback, ("error", "difference", "none"))

    @property
    def effects(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        found = Effect.CODES_REPLIES
        if self._feedback != "error":
            found |= Effect.LEAVES_OUT_FOR_GOOD
        if self._feedback != "none":
            found |= Effect.REMEMBERS_REPLIES
        return found | Effect.KEEPS_REFERENCES if self._feedback == "difference" else found

    def init(self, theta):
        server, inner = self.algorithm.init(theta)
        if self._feedback == "none":
            return server, Memory(inner, ())
        kept = zero_replies(self.algorithm, theta)
        for size in {x.size for x in jax.tree.leaves(kept)}:
            if self._feedback == "error" and (bound := self.codec.error(size)) >= 1:
                raise ValueError(
                    f"`feedback='error'` requires a codec whose error on {size} numbers is below 1, got {bound:.3g} "
                    f"from {self.codec}: the parts left out would grow. Use `feedback='difference'`, or a finer codec."
                )
        return server, Memory(inner, kept)

    @property
    def _feedback(self) -> str:
        return self.feedback or ("none" if self.codec.unbiased else "error")

    def _around(self, exchange, number):
        def local(message, memory, agent, block, round):
            reply, inner = exchange.local(message, memory.inner, agent, block, round)
            if self._feedback == "none":
                return self._coded(round, number, reply), Memory(inner, ())
            kept = memory.kept[number]
            if self._feedback == "error":
                unsent = jax.tree.map(lambda e, x: e + x, kept, reply)
                coded = self._coded(round, number, unsent)
                kept = jax.tree.map(lambda w, h: w - h, unsent, coded.values)
            else:
                step = self._coded(round, number, jax.tree.map(lambda x, v: x - v, reply, kept))
                coded = Coded(jax.tree.map(lambda v, h: v + h, kept, step.values), step.bits)
                kept = jax.tree.map(lambda v, h: v + self._pace(h.size) * h, kept, step.values)
            return coded, Memory(inner, (*memory.kept[:number], kept, *memory.kept[number + 1 :]))

        def aggregate(server, replies, round):
            return exchange.aggregate(server, replies._replace(values=replies.values.values), round)

        return exchange._replace(local=local, aggregate=aggregate)

    def _pace(self, size: int) -> float:
        """The pace at which a reference follows: 1 if the codec contracts, less if it is unbiased and noisy."""
        return 1 / (1 + self.codec.error(size)) if self.codec.unbiased else 1.0

    def _coded(self, round: Round, number: int, reply: PyTree) -> Coded:
        leaves, structure = jax.tree.flatten(reply)
        coded = [
            round.coded_by_agent(self.codec, x.ravel(), Stream.CODING, number, i).reshape(x.shape)
            for i, x in enumerate(leaves)
        ]
        return Coded(structure.unflatten(coded), float(sum(self.codec.bits(x.size) for x in leaves)))
