"""What methods demand of their wrappers, what wrappers do, and the one table that says which of them do not fit.

A method declares `demands`, a wrapper declares `effects`. Both are data; `check` looks them up in `RULES` whenever a
wrapper is made. A method or wrapper that declares nothing is taken at its worst: no wrong answer in silence.
"""

import enum
from collections.abc import Iterator
from typing import Any, NamedTuple


class Demand(enum.Flag):
    """What a method demands of whatever is wrapped around it.

    !!! example
        >>> Demand.REPLIES_ACCUMULATE in fedhsa.SCAFFOLD(0.1, local_steps=5).demands
        True
        >>> fedhsa.Lossy(fedhsa.SCAFFLSA(0.1, local_steps=5), loss=0.1)
        Traceback (most recent call last):
        TypeError: Lossy cannot wrap SCAFFLSA: the agents' shifts add to zero only while every agent's own ...
    """

    NOTHING = 0
    """Replies may be lost, changed, late or weighted, agents may be absent, and the server may be moved."""
    UNDECLARED = enum.auto()
    """The default: nothing is known."""
    SHIFTS_SUM_TO_ZERO = enum.auto()
    """Agents learn shifts from how far they are from the average, which sum to zero only if it is the true one."""
    COMMUNICATES_BY_CHANCE = enum.auto()
    """Replies are collected by the agents and sent when a coin says so."""
    COMMUNICATES_AT_THE_END = enum.auto()
    """There are no messages during a run."""
    REPLIES_CARRY_WEIGHTS = enum.auto()
    """Part of a reply says how much the rest of it counts."""
    REPLIES_ACCUMULATE = enum.auto()
    """The server adds up changes that the agents have already made in their memories."""
    SERVER_LEARNS_FROM_THE_AVERAGE = enum.auto()
    """The server learns more from the only exchange than how far to move."""
    ONE_AGENT_LEADS = enum.auto()
    """Agent 0 plays the part of the server."""
    SKIPS_EXCHANGES = enum.auto()
    """Some rounds do without one of the exchanges."""
    COLLECTS_OVER_ROUNDS = enum.auto()
    """Agents add up what they find over several rounds and send it once."""
    PARAMETERS_OF_THEIR_OWN = enum.auto()
    """Every agent has its own parameter, which its own reply moves beside the average."""
    SEVERAL_EXCHANGES = enum.auto()
    """A round has more than one exchange; this need not be declared."""


class Effect(enum.Flag):
    """What a wrapper does to replies, agents and the server."""

    NOTHING = 0
    """Replies, agents and the server are as they were; only data, or what else is written down, may change."""
    UNDECLARED = enum.auto()
    """The default: nothing is known."""
    CHANGES_REPLIES = enum.auto()
    """Some agents reply something else than what the method asks for."""
    REPLACES_THE_MEAN = enum.auto()
    """The server takes another rule than the mean, which ranks replies or measures how far apart they are."""
    CODES_REPLIES = enum.auto()
    LEAVES_OUT_FOR_GOOD = enum.auto()
    """What a code leaves out is not sent later."""
    REMEMBERS_REPLIES = enum.auto()
    """What was sent is remembered, and decides what is sent next."""
    KEEPS_REFERENCES = enum.auto()
    """Server and agents keep copies of the same vectors, which follow what is sent."""
    DELAYS_REPLIES = enum.auto()
    ADDS_IN_THE_AIR = enum.auto()
    LOSES_REPLIES = enum.auto()
    COUNTS_LOST_AS_ZERO = enum.auto()
    """A reply that does not come is zero to the server, and the others are larger for it."""
    SKIPS_AGENTS = enum.auto()
    UNEQUAL_CHANCES = enum.auto()
    """Agents take part with unequal chances and their replies are weighted accordingly."""
    SAMPLES_PRODUCTS = enum.auto()
    """Several exchanges are among the same agents, a random part of all."""
    UNEQUAL_PRODUCTS = enum.auto()
    """Both: the weights of unequal chances are in several exchanges."""
    WEIGHS_AGENTS = enum.auto()
    MOVES_THETA = enum.auto()
    MIXES_THETAS = enum.auto()
    KEEPS_OWN_REPLIES = enum.auto()
    """An agent's own reply takes the place of the average."""
    SENDS_WHOLE_NUMBERS = enum.auto()
    """Replies are whole numbers, which the server adds up."""
    REPORTS_ANOTHER_THETA = enum.auto()
    """`theta` is made from where the method stands, and moving it would move nothing."""


ON_THE_WAY = Effect.CODES_REPLIES | Effect.DELAYS_REPLIES | Effect.ADDS_IN_THE_AIR | Effect.LOSES_REPLIES
ON_THE_WAY |= Effect.SKIPS_AGENTS
NOT_EXACT = ON_THE_WAY | Effect.MOVES_THETA | Effect.MIXES_THETAS | Effect.REPLACES_THE_MEAN
CHANGES_A_RUN = ~(Effect.REPORTS_ANOTHER_THETA | Effect.UNDECLARED)


class Rule(NamedTuple):
    """What is inside, what therefore cannot be around it, and why; `{this}` is the wrapper, `{that}` what is inside."""

    inside: Demand | Effect
    around: Effect
    reason: str


EXACT = {
    Demand.SHIFTS_SUM_TO_ZERO: "the agents' shifts add to zero only while every agent's own displacement counts in the "
    "average. Use SCAFFOLD where agents are absent, FedHSA where replies are lost or changed.",
    Demand.COMMUNICATES_BY_CHANCE: "its agents communicate only when the coin says so, and what the server adds up in "
    "between is exact. Use LocalSA, whose replies are sent in every round.",
    Demand.COMMUNICATES_AT_THE_END: "its agents send nothing before the end, so there is no message to lose or to "
    "change on the way. Wrap LocalSA, whose agents communicate after every round.",
    Demand.COLLECTS_OVER_ROUNDS: "its agents add up what they find over several rounds and send it once, as the server "
    "expects it. Wrap LocalSA, whose replies are sent in every round.",
    Demand.REPLIES_CARRY_WEIGHTS: "its replies carry counts, which are weights of the displacements sent with them. "
    "Wrap LocalSA.",
    Demand.PARAMETERS_OF_THEIR_OWN: "every agent has a parameter of its own, which its own reply moves as it is. Wrap "
    "LocalSA.",
    Effect.WEIGHS_AGENTS: "its weights are for replies as the server gets them. Put {that} outside.",
    Effect.MIXES_THETAS: "neighbours average whole parameters, of which a reply is only the change.",
}
"""What needs every reply, and the server, exactly as they are."""
NO_MESSAGES = (
    *(Demand.COMMUNICATES_BY_CHANCE, Demand.COMMUNICATES_AT_THE_END, Demand.REPLIES_CARRY_WEIGHTS),
    Effect.MIXES_THETAS,
)
"""What has replies that an agent keeps to itself, or parts of which are not vectors: there is nothing to lie about."""
ACCUMULATING = {
    Effect.LOSES_REPLIES | Effect.ADDS_IN_THE_AIR | Effect.REPLACES_THE_MEAN: "Use FedHSA or FedLin.",
    Effect.DELAYS_REPLIES: "Use LocalSA.",
    Effect.LEAVES_OUT_FOR_GOOD: "With a contractive codec and `feedback='error'` they do in the end.",
    Effect.UNEQUAL_CHANCES: "Use Bernoulli or UniformSampling.",
}
"""What does not go around methods whose replies accumulate, and the remedy."""
ADDS_UP = "the server adds up changes of the agents, which is right only if each arrives once and as it was made."
MULTIPLIES = (
    "the method multiplies the averages of several exchanges over the same agents. With unequal weights or chances "
    "each is right on average and the product is not. Use FedHSA or FedLin with `all_answer_first=True`."
)
COUNTS_AGENTS = (
    "a robust rule counts agents, each as one or, if it is absent, as none. Use equal weights and equal chances."
)
SAY_WHAT_IT_DOES = (
    "{this} does not say what it does. Give the class `effects = Effect.NOTHING` if it changes no reply, no weight and "
    "not the server, and else what `fedhsa.Effect` has for it."
)
RULES = (
    Rule(Effect.WEIGHS_AGENTS, Effect.REPLACES_THE_MEAN, COUNTS_AGENTS),
    *(Rule(inside, NOT_EXACT, reason) for inside, reason in EXACT.items()),
    *(Rule(Demand.REPLIES_ACCUMULATE, around, f"{ADDS_UP} {remedy}") for around, remedy in ACCUMULATING.items()),
    *(Rule(inside, Effect.CHANGES_REPLIES, EXACT[inside]) for inside in NO_MESSAGES),
    Rule(Effect.REPLACES_THE_MEAN, Effect.WEIGHS_AGENTS | Effect.UNEQUAL_CHANCES, COUNTS_AGENTS),
    Rule(
        Effect.REPLACES_THE_MEAN,
        Effect.COUNTS_LOST_AS_ZERO,
        "a lost reply counts as zero there, which is right on average and not for a rule that ranks replies. Use "
        "`Partial(..., Bernoulli(1 - loss))`, where the absent do not count.",
    ),
    Rule(
        Effect.REPLACES_THE_MEAN, Effect.ADDS_IN_THE_AIR, "of replies that add up in the air the server knows the sum."
    ),
    Rule(Demand.PARAMETERS_OF_THEIR_OWN, Effect.WEIGHS_AGENTS, "no agent's own root depends on weights. Use LocalSA."),
    Rule(Demand.REPLIES_CARRY_WEIGHTS, Effect.WEIGHS_AGENTS, "it weighs agents by what they have seen. Use LocalSA."),
    Rule(Demand.SEVERAL_EXCHANGES, Effect.UNEQUAL_PRODUCTS, MULTIPLIES),
    Rule(Effect.SAMPLES_PRODUCTS, Effect.WEIGHS_AGENTS, MULTIPLIES),
    Rule(
        Demand.SERVER_LEARNS_FROM_THE_AVERAGE,
        Effect.KEEPS_OWN_REPLIES,
        "no reply is averaged then, but its server learns more from their average than how far to move. Use "
        "`combine='last'`, or a method whose correction has an exchange of its own, like FedHSA.",
    ),
    Rule(
        Demand.ONE_AGENT_LEADS,
        ON_THE_WAY | Effect.WEIGHS_AGENTS | Effect.REPLACES_THE_MEAN | Effect.MIXES_THETAS,
        "agent 0 plays the part of the server there: its replies are needed, and those of the others count in one "
        "exchange only, by the method's own `rule`. Use SynchronisedSA or FedHSA.",
    ),
    Rule(
        Demand.SKIPS_EXCHANGES,
        Effect.REMEMBERS_REPLIES,
        "some rounds skip an exchange, and the memory would take what is not sent for sent. Use an unbiased codec with "
        "`feedback='none'`, or FedHSA.",
    ),
    Rule(
        Demand.SEVERAL_EXCHANGES,
        Effect.DELAYS_REPLIES,
        "a round has several exchanges, and each needs the answer to the one before. Wrap a method of one exchange, "
        "like LocalSA.",
    ),
    Rule(
        ON_THE_WAY | Effect.REPORTS_ANOTHER_THETA | Effect.CHANGES_REPLIES | Effect.REPLACES_THE_MEAN,
        Effect.MIXES_THETAS,
        "neighbours average their parameters as they are. Inside may be Projected, ServerMomentum or Thinned; what "
        "changes the output goes outside.",
    ),
    Rule(
        Effect.REPORTS_ANOTHER_THETA,
        Effect.MOVES_THETA | Effect.DELAYS_REPLIES,
        "it would change what is reported, not where the method stands. Swap them: `{that}({this}(...))`.",
    ),
    Rule(
        Effect.KEEPS_REFERENCES,
        Effect.LOSES_REPLIES | Effect.DELAYS_REPLIES,
        "server and agents keep the same references only if every reply arrives. Use `feedback='error'`.",
    ),
    Rule(
        Effect.SENDS_WHOLE_NUMBERS,
        ON_THE_WAY
        | Effect.CHANGES_REPLIES
        | Effect.REPLACES_THE_MEAN
        | Effect.WEIGHS_AGENTS
        | Effect.MIXES_THETAS
        | Effect.SENDS_WHOLE_NUMBERS,
        "its replies are whole numbers, of which the server knows the sum alone. Put {that} outside, and once.",
    ),
    Rule(Effect.CODES_REPLIES, Effect.ADDS_IN_THE_AIR, "what adds up in the air is numbers, not their codes."),
    Rule(
        Effect.ADDS_IN_THE_AIR,
        Effect.UNEQUAL_CHANCES,
        "the receiver divides its noise by those who send, not by all agents.",
    ),
    Rule(
        Demand.UNDECLARED,
        CHANGES_A_RUN,
        "it does not say what it demands. Give the class `demands = Demand.NOTHING` if its replies may be lost, "
        "changed, late or weighted, and else what `fedhsa.Demand` has for it.",
    ),
    Rule(
        Effect.UNDECLARED, CHANGES_A_RUN, "it does not say what it does. Give the class `effects`, see `fedhsa.Effect`."
    ),
    Rule(~Demand.SEVERAL_EXCHANGES, Effect.UNDECLARED, SAY_WHAT_IT_DOES),
    Rule(~Effect.REPORTS_ANOTHER_THETA, Effect.UNDECLARED, SAY_WHAT_IT_DOES),
)
"""All that does not fit together."""

QUALIFIED = {
    Effect.REMEMBERS_REPLIES: " with feedback",
    Effect.LEAVES_OUT_FOR_GOOD: " without error feedback",
    Effect.UNEQUAL_CHANCES: " with unequal chances",
    Effect.UNEQUAL_PRODUCTS: " with unequal chances",
    Effect.KEEPS_OWN_REPLIES: " with `combine='first'`",
}
"""Effects that depend on settings, as they are told."""

ORDER = "Robust, Byzantine, Compressed, Delayed, OverTheAir, Lossy, Partial"


def check(wrapper: Any) -> None:
    """Raises if the wrapper cannot go around what it wraps, and says why."""
    this = type(wrapper).__name__
    for qualifier, that, reason in objections(wrapper.algorithm, wrapper.effects, wrapper.stage, this):
        raise TypeError(f"{this}{qualifier} cannot wrap {that}: {reason}")


def before_rounding(algorithm: Any) -> Any:
    """The algorithm without what makes whole numbers of its replies, which comes after noise and absence."""
    for layer in algorithm.layers:
        if layer.effects & Effect.SENDS_WHOLE_NUMBERS:
            return layer.algorithm
    return algorithm


def objections(algorithm: Any, effects: Effect, stage: Any, this: str) -> Iterator[tuple[str, str, str]]:
    """Why something with these effects, here called `this`, cannot happen to an algorithm at this stage.

    Each objection tells under which settings, the name of the layer that objects, and the reason.
    """
    for layer in algorithm.layers:
        that = type(layer).__name__
        for effect, reason in _conflicts(layer, effects):
            yield QUALIFIED.get(effect, ""), that, reason.format(this=this, that=that)
        if stage is not None and layer.stage is not None and layer.stage >= stage:
            yield "", that, f"from the inside out the order is {ORDER}, each once."


def _conflicts(layer: Any, effects: Effect) -> Iterator[tuple[Effect, str]]:
    """What of the effects does not go around this layer, and why."""
    is_method = len(layer.layers) == 1
    several = Demand.SEVERAL_EXCHANGES if is_method and len(layer.exchanges) > 1 else Demand.NOTHING
    declared = (layer.demands | several, layer.effects)
    for rule in RULES:
        if any(isinstance(rule.inside, type(mine)) and rule.inside & mine for mine in declared):
            yield from ((effect, rule.reason) for effect in effects & rule.around)
