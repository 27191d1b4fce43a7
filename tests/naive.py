"""The paper's algorithms and chains as plain NumPy loops, sharing no code with the package."""

import numpy as np


def fed_hsa(G, observations, theta, *, step_size, local_steps, server_step, rounds):
    """Algorithm 1, line by line. `G(i, theta, o)` and `observations[i][t]`; gives theta_bar after every round."""
    M = len(observations)
    theta_bar = np.array(theta, dtype=float)
    path = [theta_bar.copy()]
    for t in range(rounds):
        start = t * local_steps
        anchors = [G(i, theta_bar, observations[i][start]) for i in range(M)]
        G_bar = sum(anchors) / M
        deltas = []
        for i in range(M):
            theta_i = theta_bar.copy()
            for step in range(local_steps):
                o = observations[i][start + step]
                theta_i = theta_i + step_size * (G(i, theta_i, o) + G_bar - anchors[i])
            deltas.append(theta_i - theta_bar)
        theta_bar = theta_bar + server_step / M * sum(deltas)
        path.append(theta_bar.copy())
    return np.array(path)


def local_sa(G, observations, theta, *, step_size, local_steps, server_step, rounds):
    """Equation (9) for H steps, then averaging."""
    M = len(observations)
    theta_bar = np.array(theta, dtype=float)
    path = [theta_bar.copy()]
    for t in range(rounds):
        deltas = []
        for i in range(M):
            theta_i = theta_bar.copy()
            for step in range(local_steps):
                theta_i = theta_i + step_size * G(i, theta_i, observations[i][t * local_steps + step])
            deltas.append(theta_i - theta_bar)
        theta_bar = theta_bar + server_step / M * sum(deltas)
        path.append(theta_bar.copy())
    return np.array(path)


def chain(P, length, rng):
    """States of a finite chain, one `choice` a step."""
    states = [rng.integers(len(P))]
    for _ in range(length - 1):
        states.append(rng.choice(len(P), p=P[states[-1]]))
    return np.array(states)


def var1(Q, noise_std, length, rng):
    """z' = Q z + eps from z = 0."""
    z = [np.zeros(len(Q))]
    for _ in range(length - 1):
        z.append(Q @ z[-1] + noise_std * rng.normal(size=len(Q)))
    return np.array(z)


def powers(F, count):
    """I, F, F^2, ..."""
    out = [np.eye(len(F))]
    for _ in range(count - 1):
        out.append(out[-1] @ F)
    return out


def fed_hsa_contraction(A, eta, H, server_step=1.0):
    """C_H of the operators A_i theta - b_i."""
    A_bar, identity = A.mean(0), np.eye(A.shape[1])
    terms = [
        np.linalg.matrix_power(identity + eta * Ai, H) + eta * sum(powers(identity + eta * Ai, H)) @ (A_bar - Ai)
        for Ai in A
    ]
    return identity + server_step * (np.mean(terms, axis=0) - identity)


def local_sa_bias(A, b, theta_star, eta, H):
    """(I - mean F_i^H)^{-1} eta mean[S_i Gbar_i(theta*)]."""
    identity = np.eye(A.shape[1])
    F = [identity + eta * Ai for Ai in A]
    drift = np.mean([sum(powers(f, H)) @ (Ai @ theta_star - bi) for f, Ai, bi in zip(F, A, b, strict=True)], axis=0)
    mean_power = np.mean([np.linalg.matrix_power(f, H) for f in F], axis=0)
    return np.linalg.solve(identity - mean_power, eta * drift)
