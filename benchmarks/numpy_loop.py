"""FedHSA as in a typical paper's script: plain Python loops and NumPy, one seed at a time.

Each round has two exchanges: every agent replies with its operator at `theta_bar` for the round's first
observation; then it takes its local steps, corrected by the average of those replies, and `theta_bar` moves
by the mean displacement. Each function returns `theta_bar` after the last round.
"""

import numpy as np


def td(P, R, features, discount, *, step_size, local_steps, rounds, rng):
    """`G_i(theta, (s, s')) = (R_i(s) + gamma_i phi_i(s')^T theta - phi_i(s)^T theta) phi_i(s)`."""
    M, S, d = features.shape
    theta_bar = np.zeros(d)
    start = [rng.choice(S) for _ in range(M)]
    for _ in range(rounds):
        states = []
        for i in range(M):
            path = [start[i]]
            for _ in range(local_steps):
                path.append(rng.choice(S, p=P[i, path[-1]]))
            states.append(path)
            start[i] = path[-1]

        g = np.zeros((M, d))
        for i in range(M):
            phi, phi_next = features[i, states[i][0]], features[i, states[i][1]]
            g[i] = (R[i, states[i][0]] + discount[i] * phi_next @ theta_bar - phi @ theta_bar) * phi
        g_bar = g.mean(0)

        delta = np.zeros((M, d))
        for i in range(M):
            theta = theta_bar.copy()
            for step in range(local_steps):
                s, s_next = states[i][step], states[i][step + 1]
                phi, phi_next = features[i, s], features[i, s_next]
                G = (R[i, s] + discount[i] * phi_next @ theta - phi @ theta) * phi
                theta += step_size * (G + g_bar - g[i])
            delta[i] = theta - theta_bar
        theta_bar = theta_bar + delta.mean(0)
    return theta_bar


def quadratic(A, b, Q, noise_std, *, step_size, local_steps, rounds, rng):
    """`G_i(theta, z) = -(A_i theta - b_i) + z`, where `z' = Q_i z + noise_std_i N(0, I)` starts at zero."""
    M, d = b.shape
    theta_bar = np.zeros(d)
    z = np.zeros((M, d))
    for _ in range(rounds):
        noise = np.zeros((M, local_steps, d))
        for i in range(M):
            for step in range(local_steps):
                noise[i, step] = z[i]
                z[i] = Q[i] @ z[i] + noise_std[i] * rng.standard_normal(d)

        g = np.zeros((M, d))
        for i in range(M):
            g[i] = -(A[i] @ theta_bar - b[i]) + noise[i, 0]
        g_bar = g.mean(0)

        delta = np.zeros((M, d))
        for i in range(M):
            theta = theta_bar.copy()
            for step in range(local_steps):
                G = -(A[i] @ theta - b[i]) + noise[i, step]
                theta += step_size * (G + g_bar - g[i])
            delta[i] = theta - theta_bar
        theta_bar = theta_bar + delta.mean(0)
    return theta_bar


def finite_sum(A, b, P, *, step_size, local_steps, rounds, rng):
    """`G_i(theta, j) = -(A_ij theta - b_ij)`, where `j` is the state of the chain."""
    M, N, d = b.shape
    theta_bar = np.zeros(d)
    component = [rng.choice(N) for _ in range(M)]
    for _ in range(rounds):
        path = np.zeros((M, local_steps), dtype=int)
        for i in range(M):
            for step in range(local_steps):
                path[i, step] = component[i]
                component[i] = rng.choice(N, p=P[i, component[i]])

        g = np.zeros((M, d))
        for i in range(M):
            j = path[i, 0]
            g[i] = -(A[i, j] @ theta_bar - b[i, j])
        g_bar = g.mean(0)

        delta = np.zeros((M, d))
        for i in range(M):
            theta = theta_bar.copy()
            for step in range(local_steps):
                j = path[i, step]
                G = -(A[i, j] @ theta - b[i, j])
                theta += step_size * (G + g_bar - g[i])
            delta[i] = theta - theta_bar
        theta_bar = theta_bar + delta.mean(0)
    return theta_bar
