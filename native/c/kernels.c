/* All kernels for one instruction set: compiled once for each, with VECTOR_BYTES and KERNELS given on the command line. */
#include "kernels.h"

#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)

/* The entry of a table of `count` that a number names. */
INLINE int64_t inside(int32_t number, int64_t count) { return (uint32_t)number < count ? number : count - 1; }

enum { TOGETHER = 32 }; /* chains that move together: each waits for memory at every step, so their waits overlap */
enum { SCRATCH_BYTES = 1 << 17 }; /* normal numbers that are made at a time, in the nearest caches */
#if defined(__x86_64__) && VECTOR_BYTES < 64
enum { TILE_ROWS = 2 }; /* sixteen registers */
#else
enum { TILE_ROWS = 4 };
#endif

static void walk(const struct walk *w) {
  const int64_t M = w->M, K = w->K, H = w->H;
  const uint64_t S = (uint64_t)w->S;
  const int64_t agents = K >= TOGETHER ? 1 : TOGETHER / (K > 0 ? K : 1);
  for (int64_t first = 0; first < M; first += agents) {
    const int64_t end = first + agents < M ? first + agents : M;
    for (int64_t h = 0; h < H; h++) {
      for (int64_t m = first; m < end; m++) {
        const int64_t at = (m * H + h) * K;
        const uint32_t *table = (const uint32_t *)w->table.data + m * w->table.stride;
        const int32_t *now = h ? w->following + at - K : w->state + m * K;
        for (int64_t k = 0; k < K; k++) {
          const uint64_t column = (w->first[at + k] * S) >> 32, state = (uint64_t)inside(now[k], w->S);
          const uint32_t *entry = table + 2 * (state * S + column);
          w->states[at + k] = (int32_t)state;
          w->following[at + k] = w->second[at + k] < entry[0] ? (int32_t)column : (int32_t)entry[1];
        }
      }
    }
  }
}

/* Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw, 2011). */
INLINE void threefry(uint32_t key_0, uint32_t key_1, uint32_t *x_0, uint32_t *x_1) {
  static const int DISTANCE[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const uint32_t key[3] = {key_0, key_1, key_0 ^ key_1 ^ 0x1BD11BDA};
  uint32_t a = *x_0 + key[0], b = *x_1 + key[1];
  for (int block = 0; block < 5; block++) {
    for (int i = 0; i < 4; i++) {
      const int distance = DISTANCE[block % 2][i];
      a += b;
      b = a ^ ((b << distance) | (b >> (32 - distance)));
    }
    a += key[(block + 1) % 3];
    b += key[(block + 2) % 3] + (uint32_t)(block + 1);
  }
  *x_0 = a, *x_1 = b;
}

#define REAL double
#define BITS 64
#define SQRT __builtin_sqrt
#include "steps.h"
#undef REAL
#undef BITS
#undef SQRT
#define REAL float
#define BITS 32
#define SQRT __builtin_sqrtf
#include "steps.h"

const struct kernels KERNELS = {
    walk,
    {rank_one_float, rank_one_double},
    {affine_float, affine_double},
    {normal_walk_float, normal_walk_double},
};
