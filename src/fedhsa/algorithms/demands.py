"""The requirements of methods, the effects of wrappers, and one table of the combinations that are not supported.

A method declares `demands` and a wrapper declares `effects`. Both are data; `check` looks them up in `RULES` whenever a
wrapper is created. A method or wrapper without a declaration is refused where it could give a wrong result silently.
"""

import enum
from collections.abc import Iterator
from typing import Any, NamedTuple


class Demand(enum.Flag):
    """The requirements of a method on the wrappers around it.

    !!! example
        >>> Demand.REPLIES_ACCUMULATE in fedhsa.SCAFFOLD(0.1, local_steps=5).demands
        True
        >>> fedhsa.Lossy(fedhsa.SCAFFLSA(0.1, local_steps=5), loss=0.1)
        Traceback (most recent call last):
        TypeError: Lossy cannot wrap SCAFFLSA: the agents' shifts add to zero only if the average includes ...
    """

    NOTHING = 0
    """Replies may be lost, changed, late or weighted, agents may be absent, and the server may be moved."""
    UNDECLARED = enum.auto()
    """The default: the requirements are not known."""
    SHIFTS_SUM_TO_ZERO = enum.auto()
    """Agents learn shifts from their distance to the average; the shifts sum to zero only if the average is exact."""
    COMMUNICATES_BY_CHANCE = enum.auto()
    """Agents collect their replies and send them when a random coin says so."""
    COMMUNICATES_AT_THE_END = enum.auto()
    """No messages are sent during a run."""
    REPLIES_CARRY_WEIGHTS = enum.auto()
    """Part of a reply determines the weight of the rest."""
    REPLIES_ACCUMULATE = enum.auto()
    """The server adds up changes that the agents have already made in their memories."""
    SERVER_LEARNS_FROM_THE_AVERAGE = enum.auto()
    """The server uses the average of the only exchange for more than the displacement."""
    ONE_AGENT_LEADS = enum.auto()
    """Agent 0 acts as the server."""
    SKIPS_EXCHANGES = enum.auto()
    """Some rounds skip one of the exchanges."""
    COLLECTS_OVER_ROUNDS = enum.auto()
    """Agents accumulate results over several rounds and send them once."""
    PARAMETERS_OF_THEIR_OWN = enum.auto()
    """Every agent has its own parameter, which is moved by the agent's own reply as well as by the average."""
    SEVERAL_EXCHANGES = enum.auto()
    """A round has more than one exchange. This need not be declared."""


class Effect(enum.Flag):
    """The effects of a wrapper on replies, agents and the server.

    !!! example
        >>> Effect.LOSES_REPLIES in fedhsa.Lossy(fedhsa.LocalSA(0.1, local_steps=5), loss=0.1).effects
        True
    """

    NOTHING = 0
    """Replies, agents and the server are unchanged; only the data or the records may change."""
    UNDECLARED = enum.auto()
    """The default: the effects are not known."""
    CHANGES_REPLIES = enum.auto()
    """Some agents send replies that differ from those of the method."""
    REPLACES_THE_MEAN = enum.auto()
    """The server replaces the mean by a rule that ranks replies or measures distances between them."""
    CODES_REPLIES = enum.auto()
    """Replies are sent in fewer bits."""
    LEAVES_OUT_FOR_GOOD = enum.auto()
    """The information that a code leaves out is never sent."""
    REMEMBERS_REPLIES = enum.auto()
    """Each message depends on the messages sent before."""
    KEEPS_REFERENCES = enum.auto()
    """The server and the agents keep copies of the same vectors, updated by every message."""
    DELAYS_REPLIES = enum.auto()
    """Replies arrive in a later round."""
    ADDS_IN_THE_AIR = enum.auto()
    """The server receives only a noisy sum of the replies."""
    LOSES_REPLIES = enum.auto()
    """Some replies are lost."""
    COUNTS_LOST_AS_ZERO = enum.auto()
    """A lost reply counts as zero, and the others are scaled up accordingly."""
    SKIPS_AGENTS = enum.auto()
    """Some agents are absent from a round."""
    UNEQUAL_CHANCES = enum.auto()
    """Agents take part with unequal probabilities, and their replies are weighted accordingly."""
    SAMPLES_PRODUCTS = enum.auto()
    """Several exchanges take place among the same random subset of the agents."""
    UNEQUAL_PRODUCTS = enum.auto()
    """Both: the weights for unequal probabilities enter several exchanges."""
    WEIGHS_AGENTS = enum.auto()
    """Agents have unequal weights in the average."""
    MOVES_THETA = enum.auto()
    """The server's parameter is moved after the method's own update."""
    MIXES_THETAS = enum.auto()
    """Agents average their parameters with those of their neighbours."""
    KEEPS_OWN_REPLIES = enum.auto()
    """An agent's own reply replaces the average."""
    SENDS_WHOLE_NUMBERS = enum.auto()
    """Replies are whole numbers, which the server adds."""
    REPORTS_ANOTHER_THETA = enum.auto()
    """`theta` is computed from the method's parameter; moving it does not move the method."""


ON_THE_WAY = Effect.CODES_REPLIES | Effect.DELAYS_REPLIES | Effect.ADDS_IN_THE_AIR | Effect.LOSES_REPLIES
ON_THE_WAY |= Effect.SKIPS_AGENTS
NOT_EXACT = ON_THE_WAY | Effect.MOVES_THETA | Effect.MIXES_THETAS | Effect.REPLACES_THE_MEAN
ON_RECEIVED_REPLIES = ON_THE_WAY | Effect.WEIGHS_AGENTS | Effect.REPLACES_THE_MEAN | Effect.MIXES_THETAS
NOT_AMONG_NEIGHBOURS = ON_THE_WAY | Effect.REPORTS_ANOTHER_THETA | Effect.CHANGES_REPLIES | Effect.REPLACES_THE_MEAN
CHANGES_A_RUN = ~(Effect.REPORTS_ANOTHER_THETA | Effect.UNDECLARED)


class Rule(NamedTuple):
    """Effects not supported around a layer, and the reason: `{this}` is the wrapper, `{that}` the layer."""

    inside: Demand | Effect
    around: Effect
    reason: str


EXACT = {
    Demand.SHIFTS_SUM_TO_ZERO: "the agents' shifts add to zero only if the average includes every agent's own "
    "displacement. Use SCAFFOLD if agents are absent, FedHSA if replies are lost or changed.",
    Demand.COMMUNICATES_BY_CHANCE: "its agents communicate only when the coin says so, and the server needs exact sums "
    "of their displacements in between. Use LocalSA, whose replies are sent in every round.",
    Demand.COMMUNICATES_AT_THE_END: "its agents send nothing before the end, so there is no message to lose or to "
    "change on the way. Wrap LocalSA, whose agents communicate after every round.",
    Demand.COLLECTS_OVER_ROUNDS: "its agents accumulate results over several rounds and send them once, as the server "
    "expects. Wrap LocalSA, whose replies are sent in every round.",
    Demand.REPLIES_CARRY_WEIGHTS: "its replies carry counts, which are the weights of the displacements sent with "
    "them. Wrap LocalSA.",
    Demand.PARAMETERS_OF_THEIR_OWN: "every agent has its own parameter, which its own reply moves unchanged. Wrap "
    "LocalSA.",
    Effect.WEIGHS_AGENTS: "its weights apply to replies as the server receives them. Put {that} outside.",
    Effect.MIXES_THETAS: "neighbours average whole parameters, and a reply is only their change.",
}
"""Layers that require every reply and the server to be exactly as the method defines them."""
NO_MESSAGES = (
    *(Demand.COMMUNICATES_BY_CHANCE, Demand.COMMUNICATES_AT_THE_END, Demand.REPLIES_CARRY_WEIGHTS),
    Effect.MIXES_THETAS,
)
"""Layers whose replies stay with the agent or are not plain vectors, so that a Byzantine agent cannot change them."""
ACCUMULATING = {
    Effect.LOSES_REPLIES | Effect.ADDS_IN_THE_AIR | Effect.REPLACES_THE_MEAN: "Use FedHSA or FedLin.",
    Effect.DELAYS_REPLIES: "Use LocalSA.",
    Effect.LEAVES_OUT_FOR_GOOD: "With a contractive codec and `feedback='error'` all changes arrive eventually.",
    Effect.UNEQUAL_CHANCES: "Use Bernoulli or UniformSampling.",
}
"""Effects that are not supported around methods whose replies accumulate, with the remedy."""
ADDS_UP = (
    "the server adds the agents' changes, which is correct only if each change arrives exactly once and unchanged."
)
MULTIPLIES = (
    "the method multiplies the averages of several exchanges over the same agents. With unequal weights or "
    "probabilities each average is unbiased, but the product is not. Use FedHSA or FedLin with `all_answer_first=True`."
)
COUNTS_AGENTS = "a robust rule counts every participating agent once. Use equal weights and equal probabilities."
SAY_WHAT_IT_DOES = (
    "{this} does not declare its effects. Give the class `effects = Effect.NOTHING` if it changes no reply, no weight "
    "and no server state; otherwise declare the members of `fedhsa.Effect` that apply."
)
OTHER_PAIRS: dict[tuple[Demand | Effect, Effect], str] = {
    (Effect.REPLACES_THE_MEAN, Effect.WEIGHS_AGENTS | Effect.UNEQUAL_CHANCES): COUNTS_AGENTS,
    (Effect.REPLACES_THE_MEAN, Effect.COUNTS_LOST_AS_ZERO): "a lost reply counts as zero there, which is unbiased for "
    "a mean but not for a rule that ranks replies. Use `Partial(..., Bernoulli(1 - loss))`, where absent agents do not "
    "count.",
    (Effect.REPLACES_THE_MEAN, Effect.ADDS_IN_THE_AIR): "the server receives only the sum of replies that add up in "
    "the air.",
    (Demand.PARAMETERS_OF_THEIR_OWN, Effect.WEIGHS_AGENTS): "the root of an agent's own operator does not depend on "
    "weights. Use LocalSA.",
    (Demand.REPLIES_CARRY_WEIGHTS, Effect.WEIGHS_AGENTS): "it weights agents by the observations they have made. Use "
    "LocalSA.",
    (Demand.SEVERAL_EXCHANGES, Effect.UNEQUAL_PRODUCTS): MULTIPLIES,
    (Effect.SAMPLES_PRODUCTS, Effect.WEIGHS_AGENTS): MULTIPLIES,
    (Demand.SERVER_LEARNS_FROM_THE_AVERAGE, Effect.KEEPS_OWN_REPLIES): "no reply is averaged then, but the method's "
    "server uses their average for more than the displacement. Use `combine='last'`, or a method with a separate "
    "exchange for its correction, like FedHSA.",
    (Demand.ONE_AGENT_LEADS, ON_RECEIVED_REPLIES): "agent 0 acts as the server there: its replies are required, and "
    "those of the others count in one exchange only, by the method's own `rule`. Use SynchronisedSA or FedHSA.",
    (Demand.SKIPS_EXCHANGES, Effect.REMEMBERS_REPLIES): "some rounds skip an exchange, and the memory would count the "
    "skipped replies as sent. Use an unbiased codec with `feedback='none'`, or FedHSA.",
    (Demand.SEVERAL_EXCHANGES, Effect.DELAYS_REPLIES): "a round has several exchanges, and each needs the result of "
    "the previous one. Wrap a method with one exchange, like LocalSA.",
    (NOT_AMONG_NEIGHBOURS, Effect.MIXES_THETAS): "neighbours average their parameters unchanged. Projected, "
    "ServerMomentum and Thinned may be inside; wrappers that change the output go outside.",
    (Effect.REPORTS_ANOTHER_THETA, Effect.MOVES_THETA | Effect.DELAYS_REPLIES): "it would move the reported parameter "
    "but not the method's own. Swap them: `{that}({this}(...))`.",
    (Effect.KEEPS_REFERENCES, Effect.LOSES_REPLIES | Effect.DELAYS_REPLIES): "the server and the agents keep equal "
    "references only if every reply arrives. Use `feedback='error'`.",
    (Effect.SENDS_WHOLE_NUMBERS, ON_RECEIVED_REPLIES | Effect.CHANGES_REPLIES | Effect.SENDS_WHOLE_NUMBERS): "its "
    "replies are whole numbers, and the server receives only their sum. Put {that} outside, and only once.",
    (Effect.CODES_REPLIES, Effect.ADDS_IN_THE_AIR): "numbers add up in the air, but codes do not.",
    (Effect.ADDS_IN_THE_AIR, Effect.UNEQUAL_CHANCES): "the receiver divides its noise by the number of agents that "
    "send, not by the number of all agents.",
    (Demand.UNDECLARED, CHANGES_A_RUN): "it does not declare its demands. Give the class `demands = Demand.NOTHING` if "
    "its replies may be lost, changed, late or weighted; otherwise declare the members of `fedhsa.Demand` that apply.",
    (Effect.UNDECLARED, CHANGES_A_RUN): "it does not declare its effects. Give the class `effects`, see "
    "`fedhsa.Effect`.",
    (~Demand.SEVERAL_EXCHANGES, Effect.UNDECLARED): SAY_WHAT_IT_DOES,
    (~Effect.REPORTS_ANOTHER_THETA, Effect.UNDECLARED): SAY_WHAT_IT_DOES,
}
"""Layers with these demands or effects, and the effects that are not supported around them."""
RULES = (
    Rule(Effect.WEIGHS_AGENTS, Effect.REPLACES_THE_MEAN, COUNTS_AGENTS),
    *(Rule(inside, NOT_EXACT, reason) for inside, reason in EXACT.items()),
    *(Rule(Demand.REPLIES_ACCUMULATE, around, f"{ADDS_UP} {remedy}") for around, remedy in ACCUMULATING.items()),
    *(Rule(inside, Effect.CHANGES_REPLIES, EXACT[inside]) for inside in NO_MESSAGES),
    *(Rule(*pair, reason) for pair, reason in OTHER_PAIRS.items()),
)
"""All combinations that are not supported."""

QUALIFIED = {
    Effect.REMEMBERS_REPLIES: " with feedback",
    Effect.LEAVES_OUT_FOR_GOOD: " without error feedback",
    Effect.UNEQUAL_CHANCES: " with unequal probabilities",
    Effect.UNEQUAL_PRODUCTS: " with unequal probabilities",
    Effect.KEEPS_OWN_REPLIES: " with `combine='first'`",
}
"""Effects that depend on settings, with the words that error messages use for them."""

ORDER = "Robust, Byzantine, Compressed, Delayed, OverTheAir, Lossy, Partial"


def check(wrapper: Any) -> None:
    """Raises `TypeError` with the reason if the wrapper is not supported around the algorithm it wraps."""
    this = type(wrapper).__name__
    for qualifier, that, reason in objections(wrapper.algorithm, wrapper.effects, wrapper.stage, this):
        raise TypeError(f"{this}{qualifier} cannot wrap {that}: {reason}")


def before_rounding(algorithm: Any) -> Any:
    """The algorithm without the wrapper that rounds its replies, which acts after noise and absence."""
    for layer in algorithm.layers:
        if layer.effects & Effect.SENDS_WHOLE_NUMBERS:
            return layer.algorithm
    return algorithm


def objections(algorithm: Any, effects: Effect, stage: Any, this: str) -> Iterator[tuple[str, str, str]]:
    """Yields the reasons why effects of something called `this` are not supported around an algorithm at this stage.

    Each objection consists of the settings it depends on, the name of the layer that objects, and the reason.
    """
    for layer in algorithm.layers:
        that = type(layer).__name__
        for effect, reason in _conflicts(layer, effects):
            yield QUALIFIED.get(effect, ""), that, reason.format(this=this, that=that)
        if stage is not None and layer.stage is not None and layer.stage >= stage:
            yield "", that, f"from the inside out, the order is {ORDER}, and each may appear once."


def _conflicts(layer: Any, effects: Effect) -> Iterator[tuple[Effect, str]]:
    """Yields the effects that are not supported around this layer, with the reasons."""
    is_method = len(layer.layers) == 1
    several = Demand.SEVERAL_EXCHANGES if is_method and len(layer.exchanges) > 1 else Demand.NOTHING
    declared = (layer.demands | several, layer.effects)
    for rule in RULES:
        if any(isinstance(rule.inside, type(mine)) and rule.inside & mine for mine in declared):
            yield from ((effect, rule.reason) for effect in effects & rule.around)
