/* The kernels, in plain C: what each computes is said here once, for both precisions.
 *
 * Arrays are dense with the last axis contiguous. Axes: M agents, K seeds, H steps, S states or rows, J rows of an
 * operator, N components, d coordinates. What agents may share is an
 * `own` array: each agent's, and how far apart they are, which is 0 where there is one for all.
 * States, rows and components outside their tables count as the last entry: no number that arrives can read elsewhere.
 */
#ifndef FEDHSA_KERNELS_H
#define FEDHSA_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

enum { MOST_ROWS = 16 }; /* of an operator of rank one */

struct own {
  const void *data;
  int64_t stride;
};

/* Steps of finite chains by alias tables: the states before each step, and those after it. */
struct walk {
  int64_t M, K, H, S;
  const uint32_t *first, *second; /* (M, H, K) random words */
  struct own table;               /* (S, S, 2): threshold, alias */
  const int32_t *state;           /* (M, K) */
  int32_t *states, *following;    /* (M, H, K) */
};

/* theta += eta * (error * row_0 + shift - minus) with error = constant + sum_j weight_j row_j . theta, for the steps
 * from `start` to before `stop`. Without a step size there is one, and the result is error * row_0, the operator at theta. */
struct rank_one {
  int64_t M, K, H, S, J, d, start, stop;
  struct own theta, shift, minus; /* (K, d); the last two may be absent */
  struct own eta;                 /* (); may be absent */
  struct own table;               /* (S, d) */
  const void *constant;           /* (M, H, K) */
  const int32_t *rows[MOST_ROWS]; /* (M, H, K) each */
  struct own weights[MOST_ROWS];  /* (H, K), or () */
  bool weight_of_step[MOST_ROWS]; /* which of the two */
  void *out;                      /* (M, K, d) */
};

/* theta += eta * (b_c - A_c theta + noise + shift - minus), for the steps from `start` to before `stop`; c is the component of
 * the step, or 0. Without a step size there is one, and the result is b_c - A_c theta + noise, the operator at theta. */
struct affine {
  int64_t M, K, H, N, d, start, stop;
  struct own theta, shift, minus; /* (K, d); the last two may be absent */
  struct own eta;                 /* (); may be absent */
  struct own A, b;                /* (N, d, d), (N, d) */
  const int32_t *component; /* (M, H, K), or NULL */
  const void *noise;        /* (M, H, d, K), or NULL */
  void *out;                /* (M, K, d) */
};

/* z' = Q z + std * normal, where the vectors of normal numbers are those that `fedhsa._random` makes of the keys;
 * `states[m, h]` is z before the step. */
struct normal_walk {
  int64_t M, K, H, d;
  const uint32_t *first, *second; /* (M, H, K), the words of the keys */
  struct own Q, std;              /* (d, d), () */
  const void *state;              /* (M, K, d) */
  void *last;                     /* (M, K, d) */
  void *states;                   /* (M, H, d, K) */
};

/* Kernels return false when there is no memory for their scratch. */
struct kernels {
  void (*walk)(const struct walk *);
  bool (*rank_one[2])(const struct rank_one *); /* float, double */
  bool (*affine[2])(const struct affine *);
  bool (*normal_walk[2])(const struct normal_walk *);
};

#endif
