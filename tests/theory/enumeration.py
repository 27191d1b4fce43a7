"""The truth about small federations of finite chains with affine operators, in NumPy and without the package.

An agent is a chain with an affine operator on its edges. A round is a random affine map of the error e, and all that is
asked of it is the exact linear map of the second moments E[(e, 1)(e, 1)^T 1{joint state}] that it induces. It is found
twice: `round_by_paths` sums over all joint trajectories of a round, and `round_by_agents` over the first edges alone,
because given these, the agents are independent. `simulate` is for what neither can reach. `Closure` is the same law
with all products of two agents' states dropped, the approximation behind the one-site law.
"""

import abc
import functools
import itertools
from typing import NamedTuple

import numpy as np


class Agent(NamedTuple):
    """On the edge s -> t the operator at the error e is `A[s, t] @ e + g[s, t]`."""

    P: np.ndarray
    A: np.ndarray
    g: np.ndarray


class Rule(NamedTuple):
    """FedHSA with `correction` 1, and Local SA with 0."""

    step_size: float
    local_steps: int
    server_step: float = 1.0
    correction: float = 1.0


# Agents from the arrays that make a problem.


def td_agents(P, R, features, discount):
    """G = (R + gamma phi(t)^T theta - phi(s)^T theta) phi(s), as a function of the error, and the root."""
    P, features = np.asarray(P, float), np.asarray(features, float)
    discount = np.broadcast_to(discount, len(P))
    rewards = np.broadcast_to(np.asarray(R, float).reshape(*P.shape[:2], -1), P.shape)  # by state, or by edge
    ahead = discount[:, None, None, None] * features[:, None] - features[:, :, None]
    A = features[:, :, None, :, None] * ahead[:, :, :, None]
    return centred(P, A, rewards[..., None] * features[:, :, None])


def finite_sum_agents(A, b, P):
    """G = b[s] - A[s] theta, as a function of the error, and the root."""
    A, b, P = (np.asarray(x, float) for x in (A, b, P))
    A, b = (np.repeat(x[:, :, None], P.shape[1], axis=2) for x in (-A, b))  # whatever the next state
    return centred(P, A, b)


def centred(P, A, g):
    """The agents of the operators A theta + g, seen from the root of their mean over agents and stationary edges."""
    weights = np.array([stationary(p)[:, None] * p for p in P])
    A_bar, g_bar = np.einsum("ist,istab->ab", weights, A), np.einsum("ist,ista->a", weights, g)
    root = -np.linalg.solve(A_bar, g_bar)
    return [Agent(P[i], A[i], g[i] + A[i] @ root) for i in range(len(P))], root


def stationary(P):
    """The law that P keeps."""
    S = len(P)
    return np.linalg.lstsq(np.vstack([P.T - np.eye(S), np.ones(S)]), np.append(np.zeros(S), 1.0), rcond=None)[0]


# The map of second moments, (J, q, J, q) with J joint states and q = (d + 1)^2.


def round_by_paths(agents, rule, random=None):
    """Sums over every trajectory of every agent: S^(M (H + 1)) terms.

    Agents that are not among the `random` ones follow the mean of their trajectories from a stationary state, and have
    one state.
    """
    M, d = len(agents), agents[0].A.shape[-1]
    random = range(M) if random is None else random
    groups = [(_trajectories if i in random else _mean_trajectory)(agent, rule) for i, agent in enumerate(agents)]
    sizes = [len(agent.P) if i in random else 1 for i, agent in enumerate(agents)]
    J, q = int(np.prod(sizes)), (d + 1) ** 2
    found = np.zeros((J, q, J, q))
    for chosen in itertools.product(*(group.items() for group in groups)):
        begin = np.ravel_multi_index([ends[0] for ends, _ in chosen], sizes)
        end = np.ravel_multi_index([ends[1] for ends, _ in chosen], sizes)
        axes = [(1,) * i + (-1,) + (1,) * (M - 1 - i) for i in range(M)]  # one axis for each agent's trajectories
        parts = [[x.reshape(*axes[i], *x.shape[1:]) for x in part] for i, (_, part) in enumerate(chosen)]
        probability = functools.reduce(np.multiply, (p for p, *_ in parts))
        g_bar = sum(anchor for _, anchor, _, _ in parts) / M
        mean_end = sum(end + steer @ g_bar for *_, end, steer in parts) / M
        map = np.zeros((*probability.shape, d + 1, d + 1))
        map[..., :d, :] = rule.server_step * mean_end + (1 - rule.server_step) * np.eye(d, d + 1)
        map[..., d, d] = 1
        map, probability = map.reshape(-1, q), probability.ravel()
        total = ((probability[:, None] * map).T @ map).reshape((d + 1,) * 4)
        found[end, :, begin] += np.einsum("abcd->acbd", total).reshape(q, q)
    return found


def _trajectories(agent, rule):
    """By first and last state: probabilities, and what multiplies (e, 1) and, in ends, the mean anchor."""
    S, d, eta = len(agent.P), agent.A.shape[-1], rule.step_size
    groups = {(s, t): [] for s in range(S) for t in range(S)}
    for states in itertools.product(range(S), repeat=rule.local_steps + 1):
        edges = list(itertools.pairwise(states))
        probability = np.prod([agent.P[edge] for edge in edges])
        operators = [np.column_stack([agent.A[edge], agent.g[edge]]) for edge in edges]
        anchor, end, steer = operators[0], np.eye(d, d + 1), np.zeros((d, d))
        for G in operators:
            moved = G[:, :d] @ end - rule.correction * anchor
            moved[:, d] += G[:, d]
            end, steer = end + eta * moved, steer + eta * (G[:, :d] @ steer + rule.correction * np.eye(d))
        if probability > 0:
            groups[states[0], states[-1]].append((probability, anchor, end, steer))
    return {ends: [np.array(x) for x in zip(*group, strict=True)] for ends, group in groups.items() if group}


def _mean_trajectory(agent, rule):
    """`_trajectories` of an agent whose only trajectory is the mean of all, from a stationary state."""
    p, *parts = _weighted(agent, rule)
    return {(0, 0): [np.ones(1), *(np.einsum("n,nab->ab", p, part)[None] for part in parts)]}


def _weighted(agent, rule):
    """All trajectories in one list, with their probabilities from a stationary state."""
    pi = stationary(agent.P)
    groups = [[pi[s] * p, *parts] for (s, _), (p, *parts) in _trajectories(agent, rule).items()]
    return [np.concatenate(parts) for parts in zip(*groups, strict=True)]


def round_by_agents(agents, rule):
    r"""Given all first edges, and so all anchors, the rest of the round is a product over the agents.

    After its first step an agent holds (y, c, 1) with the correction c, and every later edge multiplies it by a matrix
    E. The moments of the product of these matrices, by first and last state, are powers of the blocks of P E and of
    P E (x) E.
    """
    M, d = len(agents), agents[0].A.shape[-1]
    eta, H, alpha, kappa = rule
    n, q = 2 * d + 1, (d + 1) ** 2
    sizes = [len(agent.P) for agent in agents]
    states = list(itertools.product(*map(range, sizes)))
    later = [_later_steps(agent, eta, H - 1) for agent in agents]
    kept = np.diag([1 - alpha] * d + [1.0])
    read = alpha / M * np.eye(d + 1, n)
    read[d] = 0
    read_square = np.kron(read, read)
    error, one = np.eye(d, d + 1), np.eye(d + 1)[d:]
    found = np.zeros((len(states), q, len(states), q))
    for after in states:
        held, chances = np.zeros((len(states), M, n, d + 1)), np.zeros(len(states))
        for number, before in enumerate(states):
            edges = list(zip(before, after, strict=True))
            anchors = [np.column_stack([a.A[e], a.g[e]]) for a, e in zip(agents, edges, strict=True)]
            chances[number] = np.prod([a.P[e] for a, e in zip(agents, edges, strict=True)])
            corrections = [kappa * (sum(anchors) / M - anchor) for anchor in anchors]
            for i in range(M):
                held[number, i] = np.vstack([error + eta * (anchors[i] + corrections[i]), corrections[i], one])
        # What each agent gives, with an axis for its last state among those of the others, then one for `before`.
        stay, first, second = [], [], []
        for i, (zeroth, mean, square) in enumerate(later):
            axes = (1,) * i + (sizes[i],) + (1,) * (M - 1 - i)
            here = held[:, i]
            both = np.einsum("zab,zcd->zacbd", here, here).reshape(len(states), n * n, q)
            stay.append(zeroth[:, after[i]].reshape(*axes, 1, 1, 1))
            first.append((read @ mean[:, after[i], None] @ here).reshape(*axes, len(states), d + 1, d + 1))
            second.append((read_square @ square[:, after[i], None] @ both).reshape(*axes, len(states), q, q))

        total = _chance(stay) * np.kron(kept, kept)
        for i in range(M):
            total = total + _chance(stay, i) * (second[i] + _kron(first[i], kept) + _kron(kept, first[i]))
            for j in set(range(M)) - {i}:
                total = total + _chance(stay, i, j) * _kron(first[i], first[j])
        total = chances[:, None, None] * np.broadcast_to(total, (*sizes, len(states), q, q))
        found += np.moveaxis(total.reshape(len(states), len(states), q, q), 1, 2)
    return found


def _chance(stay, *without):
    """Of the last states of all agents but these."""
    return functools.reduce(np.multiply, (chance for k, chance in enumerate(stay) if k not in without), 1.0)


def _later_steps(agent, eta, count):
    """E[1{t}], E[X 1{t}] and E[X (x) X 1{t}] of the product X of `count` steps, `[last state, first state]`."""
    S, d = len(agent.P), agent.A.shape[-1]
    n = 2 * d + 1
    E = np.zeros((S, S, n, n))
    E[:] = np.eye(n)
    E[..., :d, :d] += eta * agent.A
    E[..., :d, d : 2 * d] += eta * np.eye(d)
    E[..., :d, 2 * d] += eta * agent.g
    powers = []
    for step in (np.ones((S, S, 1, 1)), E, _kron(E, E)):
        size = step.shape[-1]
        blocks = np.einsum("st,stab->tasb", agent.P, step).reshape(S * size, S * size)
        power = np.linalg.matrix_power(blocks, count).reshape(S, size, S, size)
        powers.append(np.swapaxes(power, 1, 2))
    return powers[0][..., 0, 0], powers[1], powers[2]


def _kron(a, b):
    """Kronecker products of stacks of matrices."""
    product = np.einsum("...ab,...cd->...acbd", a, b)
    return product.reshape(*product.shape[:-4], a.shape[-2] * b.shape[-2], a.shape[-1] * b.shape[-1])


# What follows from it.


class Linear(abc.ABC):
    """What follows from a linear map of moments (J, q, J, q), for chains in the long run and from a start.

    `weights` gives the blocks that belong to the event of certainty, for stationary chains or the given ones, and
    `total` the weights of the blocks in E[(e, 1)(e, 1)^T].
    """

    round: np.ndarray
    d: int

    @abc.abstractmethod
    def weights(self, chains=None) -> np.ndarray: ...

    @property
    def total(self):
        return np.ones(len(self.round))

    @property
    def _flat(self):
        J, q = self.round.shape[:2]
        return self.round.reshape(J * q, J * q)

    @property
    def _part(self):
        part = np.array([["square"] * self.d + ["mean"]] * self.d + [["other"] * self.d + ["one"]]).ravel()
        return np.tile(part, len(self.round))

    def _radius(self, name):
        of = self._part == name
        return float(abs(np.linalg.eigvals(self._flat[np.ix_(of, of)])).max())

    @property
    def mean_radius(self):
        return self._radius("mean")

    @property
    def mean_square_radius(self):
        return self._radius("square")

    @functools.cached_property
    def moments(self):
        """E[(e, 1)(e, 1)^T] in the long run; meaningless where a radius is 1 or more."""
        known, law = self._part == "one", self.weights()
        moving = self._flat[np.ix_(~known, ~known)]
        Y = np.zeros(len(known))
        Y[known] = law
        Y[~known] = np.linalg.solve(np.eye(len(moving)) - moving, self._flat[np.ix_(~known, known)] @ law)
        return self._summed(Y)

    def _summed(self, Y):
        return np.einsum("j,jab->ab", self.total, Y.reshape(-1, self.d + 1, self.d + 1))

    @property
    def mean(self):
        return self.moments[:-1, -1]

    @property
    def covariance(self):
        return self.moments[:-1, :-1] - np.outer(self.mean, self.mean)

    @property
    def floor(self):
        return float(np.trace(self.moments[:-1, :-1]))

    def path(self, start, rounds, chains=None):
        """E[(e, 1)(e, 1)^T] before the first round and after each, from the error `start`.

        `chains` are the distributions of the agents' first states, by default the stationary ones.
        """
        y = np.append(start, 1.0)
        Y = np.kron(self.weights(chains), np.outer(y, y).ravel())
        for _ in range(rounds + 1):
            yield self._summed(Y)
            Y = self._flat @ Y

    def errors(self, start, rounds, chains=None):
        """E|e|^2 before the first round and after each."""
        return np.array([np.trace(moments[:-1, :-1]) for moments in self.path(start, rounds, chains)])


class Law(Linear):
    """What FedHSA or Local SA does, exactly: in the long run, and from a start round by round.

    With `random`, what it does where all other agents follow the mean of their trajectories.
    """

    def __init__(self, agents, rule, round=round_by_agents, random=None):
        self.d = agents[0].A.shape[-1]
        self.agents = agents if random is None else [agents[i] for i in random]
        self.round = round(agents, rule) if random is None else round_by_paths(agents, rule, random)

    def weights(self, chains=None):
        laws = [stationary(agent.P) for agent in self.agents] if chains is None else chains
        return functools.reduce(np.kron, laws, np.ones(1))


class Closure(Linear):
    r"""Products of two agents' states dropped: moments are U + \sum_i V_i(s_i) / \pi_i(s_i), V_i of sum zero.

    A round is computed for each agent alone among the means of the others, and what it adds to that of all means is
    summed over the agents. A correction multiplies the others' first operators by agent i's random response, so that
    their noise given the error is seen through E[T_i Z T_i^T], not through its mean response alone.
    """

    def __init__(self, agents, rule, sites=None):
        sites = range(len(agents)) if sites is None else sites
        self.d = agents[0].A.shape[-1]
        self.agents = [agents[i] for i in sites]
        q, laws = (self.d + 1) ** 2, [stationary(agent.P) for agent in self.agents]
        means = round_by_paths(agents, rule, ())[0, :, 0]
        ends = np.cumsum([1, *map(len, laws)])
        self.round = found = np.zeros((ends[-1], q, ends[-1], q))
        found[0, :, 0] = means
        for i, pi, begin, end in zip(sites, laws, ends[:-1], ends[1:], strict=True):
            one = round_by_paths(agents, rule, (i,))
            summed, own = one.sum(0), slice(begin, end)
            from_U = np.einsum("tasb,s->tab", one, pi)
            found[0, :, 0] += from_U.sum(0) - means
            found[0, :, own] += summed
            found[own, :, 0] += from_U - pi[:, None, None] * from_U.sum(0)
            found[own, :, own] += one - pi[:, None, None, None] * summed
        for agent, other in itertools.permutations(self.agents, 2):
            found[0, :, 0] += _through_response(agent, other, rule, len(agents))

    def weights(self, chains=None):
        laws = [stationary(agent.P) for agent in self.agents]
        chains = laws if chains is None else chains
        return np.concatenate([[1.0], *(start - pi for start, pi in zip(chains, laws, strict=True))])

    @property
    def total(self):
        return np.eye(len(self.round))[0]


def _through_response(agent, other, rule, number):
    """What the noise of another agent's first operator adds to E[e e^T] through this agent's response, as (q, q)."""
    d = agent.A.shape[-1]
    (p, _, _, response), (p_other, operator, _, _) = (_weighted(x, rule) for x in (agent, other))
    found = np.zeros((d + 1,) * 4)
    felt = np.einsum("acbd,bdxy->acxy", _squares(p, response), _squares(p_other, operator))
    found[:d, :d] = (rule.server_step / number**2) ** 2 * felt
    return found.reshape((d + 1) ** 2, -1)


def _squares(p, X):
    """The mean of X (x) X beyond that of the mean of X."""
    mean = np.einsum("n,nab->ab", p, X)
    return np.einsum("n,nab,ncd->acbd", p, X, X) - np.einsum("ab,cd->acbd", mean, mean)


class Pairs(Linear):
    """`Closure`, and for every pair of agents how far its exact law among the means of the others is from it.

    What the closure implies for the states of a pair goes through the exact round of the pair, together with what was
    missing before; what the closure of the pair makes of it is subtracted.
    """

    def __init__(self, agents, rule):
        alone = Closure(agents, rule)
        self.d, self.agents, q = alone.d, agents, (alone.d + 1) ** 2
        self.laws = [stationary(agent.P) for agent in agents]
        self.pairs = list(itertools.combinations(range(len(agents)), 2))
        ends = np.cumsum([1, *map(len, self.laws)])
        sizes = [len(self.laws[i]) * len(self.laws[j]) for i, j in self.pairs]
        self.number = len(alone.round)
        self.round = found = np.zeros((self.number + sum(sizes), q) * 2)
        found[: self.number, :, : self.number] = alone.round
        at = self.number
        for pair, size in zip(self.pairs, sizes, strict=True):
            own = [0, *(s for i in pair for s in range(ends[i], ends[i + 1]))]
            exact, closed, implied = (
                Law(agents, rule, random=pair).round,
                Closure(agents, rule, pair).round,
                self._implied(pair),
            )
            missing = np.einsum("jakb,kx->jaxb", exact, implied) - np.einsum("jx,xayb->jayb", implied, closed)
            found[at : at + size, :, own] = missing
            found[at : at + size, :, at : at + size] = exact
            at += size

    def _implied(self, pair):
        """The moments on the states of a pair, from those of its closure."""
        one, two = (self.laws[i] for i in pair)
        of_one, of_two = np.kron(np.eye(len(one)), two[:, None]), np.kron(one[:, None], np.eye(len(two)))
        return np.concatenate([np.kron(one, two)[:, None], of_one, of_two], axis=1)

    def weights(self, chains=None):
        chains = self.laws if chains is None else chains
        away = [chain - law for chain, law in zip(chains, self.laws, strict=True)]
        found = [np.concatenate([[1.0], *away])]
        for i, j in self.pairs:
            found.append(
                np.kron(chains[i], chains[j]) - self._implied((i, j)) @ np.concatenate([[1.0], away[i], away[j]])
            )
        return np.concatenate(found)

    @property
    def total(self):
        return np.where(np.arange(len(self.round)) == 0, 1.0, np.arange(len(self.round)) >= self.number)


# Replies that are missing or altered.


class Outcomes(NamedTuple):
    """All that may happen in a round, in `n` cases."""

    chance: np.ndarray
    A: np.ndarray
    """The slopes of the operators of every step, `(n, M, H, d, d)`."""
    g: np.ndarray
    """Their values at the error zero, `(n, M, H, d)`."""
    first: np.ndarray
    """What arrives of first operators, times their weights, `(n, M, d, d)`."""
    last: np.ndarray
    """What arrives of displacements, times their weights, `(n, M, d, d)`."""
    air: np.ndarray
    """What the receiver adds in the two exchanges, `(n, 2, d)`."""

    def moments(self, e, rule):
        """E[(e', 1)(e', 1)^T] one round after the error `e`."""
        eta, H, alpha, kappa = rule
        anchors = self.A[:, :, 0] @ e + self.g[:, :, 0]
        g_hat = np.einsum("nmab,nmb->na", self.first, anchors) + self.air[:, 0]
        y = np.broadcast_to(e, anchors.shape)
        for step in range(H):
            G = np.einsum("nmab,nmb->nma", self.A[:, :, step], y) + self.g[:, :, step]
            y = y + eta * (G + kappa * (g_hat[:, None] - anchors))
        after = e + alpha * (np.einsum("nmab,nmb->na", self.last, y - e) + self.air[:, 1])
        x = np.append(after, np.ones((len(after), 1)), axis=1)
        return np.einsum("n,na,nb->ab", self.chance, x, x)


def outcomes(agents, local_steps, sets, arrivals, airs=None, *, all_first=False):
    """Every set of agents, with all that they observe independently and all ways in which their replies arrive.

    **Arguments:**

    - `agents`: for each agent its observations `(probability, A, g)`.
    - `sets`: the `(probability, weights)` of each set of agents.
    - `arrivals`: the `(probability, matrix)` of each way in which a reply arrives.
    - `airs`: the `(probability, noise)` of what the receiver adds to a sum of replies. Default: nothing.
    - `all_first`: whether all agents answer first, with equal weights.
    """
    M, d, found = len(agents), len(arrivals[0][1]), []
    airs = [(1.0, np.zeros(d))] if airs is None else airs
    both_airs = [(p * q, np.array([x, y])) for (p, x), (q, y) in itertools.product(airs, airs)]
    for chance, weights in sets:
        there, number = weights > 0, max((weights > 0).sum(), 1)
        at_first = np.full(M, 1 / M) if all_first else weights
        shares = np.array([1 / M if all_first else there.any() / number, there.any() / number])
        own = []
        for i, agent in enumerate(agents):
            seen = itertools.product(agent, repeat=local_steps if there[i] else int(all_first))
            nothing = [(1.0, np.zeros((d, d)))]
            ways = itertools.product(seen, *(arrivals if w > 0 else nothing for w in (at_first[i], weights[i])))
            own.append([_way(way, agent[0], local_steps, at_first[i], weights[i]) for way in ways])
        own.append([(p, shares[:, None] * air) for p, air in both_airs])
        places = np.indices([len(ways) for ways in own]).reshape(M + 1, -1)
        columns = [[np.array(x)[at] for x in zip(*ways, strict=True)] for ways, at in zip(own, places, strict=True)]
        *each, (p_air, air) = columns
        p = chance * p_air * functools.reduce(np.multiply, [column[0] for column in each])
        found.append([p, *(np.stack(x, axis=1) for x in list(zip(*each, strict=True))[1:]), air])
    return Outcomes(*(np.concatenate(x) for x in zip(*found, strict=True)))


def _way(way, unseen, local_steps, at_first, weight):
    """What an agent meets in a round: its probability, operators of all steps, and its replies as they arrive."""
    seen, (p_first, first), (p_last, last) = way
    steps = [*seen, *[unseen] * (local_steps - len(seen))]  # later steps of an absent agent do not matter
    p = np.prod([q for q, _, _ in seen]) * p_first * p_last
    return p, [A for _, A, _ in steps], [g for _, _, g in steps], at_first * first, weight * last


# Many agents.


def simulate(agents, rule, start, *, seeds, rng):
    """The errors (d, seeds) of independent runs, before the first round and after each, without end."""
    M, S, d = len(agents), len(agents[0].P), agents[0].A.shape[-1]
    eta, H, alpha, kappa = rule
    A = np.moveaxis(np.array([agent.A for agent in agents]).reshape(M * S * S, d, d), 0, 2).copy()
    g = np.array([agent.g for agent in agents]).reshape(M * S * S, d).T.copy()
    up_to = np.array([agent.P for agent in agents]).cumsum(-1).reshape(M * S, S).T.copy()
    own = np.arange(M) * S
    laws = np.array([stationary(agent.P) for agent in agents]).cumsum(-1)
    state = own + (rng.random((seeds, M, 1)) > laws[:, :-1]).sum(-1)
    e = np.repeat(np.asarray(start, float)[:, None], seeds, axis=1)
    while True:
        yield e
        y, correction = np.repeat(e[:, :, None], M, axis=2), 0.0
        for step in range(H):
            chance = rng.random((seeds, M))
            after = sum((chance > bound.take(state)).astype(int) for bound in up_to[:-1])
            edge = state * S + after
            G = np.array([sum(A[a, b].take(edge) * y[b] for b in range(d)) + g[a].take(edge) for a in range(d)])
            if step == 0:
                correction = kappa * (G.mean(2, keepdims=True) - G)
            y, state = y + eta * (G + correction), own + after
        e = e + alpha * (y.mean(2) - e)


class LongRun(NamedTuple):
    """What simulation found of the long run, with standard errors over seeds."""

    floor: float
    floor_se: float
    variance: float
    variance_se: float


def long_run(agents, rule, *, burn_in, rounds, seeds, rng):
    """Time averages over `rounds`, after `burn_in` from the root."""
    errors = simulate(agents, rule, np.zeros(agents[0].A.shape[-1]), seeds=seeds, rng=rng)
    mean, square = 0.0, 0.0
    for e in itertools.islice(errors, burn_in, burn_in + rounds):
        mean, square = mean + e / rounds, square + (e**2).sum(0) / rounds
    centre = mean.mean(1)
    variance = square - 2 * centre @ mean + centre @ centre
    return LongRun(*mean_and_error(square), *mean_and_error(variance))


def mean_and_error(values):
    """The mean over the last axis, the seeds, and its standard error."""
    return values.mean(-1), values.std(-1, ddof=1) / np.sqrt(values.shape[-1])
