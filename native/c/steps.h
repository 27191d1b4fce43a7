/* The kernels of one precision: included once for each, with REAL and BITS set. */
#define NAME(name) JOIN(name, REAL)
#define W ((int64_t)(VECTOR_BYTES / sizeof(REAL)))
#define vec NAME(vec)
#define loose NAME(loose)

typedef REAL vec __attribute__((vector_size(VECTOR_BYTES)));
typedef REAL loose __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));

INLINE vec NAME(load)(const REAL *x) { return *(const loose *)x; }
INLINE void NAME(store)(REAL *x, vec v) { *(loose *)x = v; }

/* What belongs to agent m; NULL where there is none. */
INLINE const REAL *NAME(of)(struct own x, int64_t m) { return x.data ? (const REAL *)x.data + m * x.stride : NULL; }

/* eta * (shift - minus), where the two may be absent. */
INLINE void NAME(set_push)(REAL *push, REAL eta, const REAL *shift, const REAL *minus, int64_t count) {
  if (shift && minus)
    for (int64_t i = 0; i < count; i++) push[i] = eta * (shift[i] - minus[i]);
  else
    for (int64_t i = 0; i < count; i++) push[i] = shift ? eta * shift[i] : 0;
}

INLINE REAL NAME(sum)(vec v) {
  REAL parts[VECTOR_BYTES / sizeof(REAL)];
  memcpy(parts, &v, sizeof v);
  for (int64_t width = W / 2; width > 0; width /= 2)
    for (int64_t i = 0; i < width; i++) parts[i] += parts[i + width];
  return parts[0];
}

/* One in the last lanes that a vector before it has not covered. The last vector of d >= W coordinates ends with them. */
INLINE vec NAME(rest)(int64_t d) {
  vec mask;
  for (int64_t i = 0; i < W; i++) mask[i] = i >= W - d % W ? (REAL)1 : (REAL)0;
  return mask;
}

/* Operators of rank one. */

enum { NAME(LANES) = 8 }; /* pairs of agent and seed whose steps interleave: a step must wait for the one before */

/* Where one lane finds what is its own. */
#define lane NAME(lane)
struct lane {
  REAL *x, eta;
  const REAL *theta, *table, *constant, *weight[MOST_ROWS];
  const int32_t *row[MOST_ROWS];
};

INLINE vec NAME(mix)(const REAL *const *row, const REAL *weight, int64_t J, int64_t c) {
  vec v = weight[0] * NAME(load)(row[0] + c);
  for (int64_t j = 1; j < J; j++) v += weight[j] * NAME(load)(row[j] + c);
  return v;
}

/* sum_j weight_j row_j . x */
INLINE REAL NAME(mixed_dot)(const REAL *const *row, const REAL *weight, int64_t J, const REAL *x, int64_t d, vec rest) {
  if (d < W) {
    REAL total = 0;
    for (int64_t c = 0; c < d; c++) {
      REAL v = weight[0] * row[0][c];
      for (int64_t j = 1; j < J; j++) v += weight[j] * row[j][c];
      total += v * x[c];
    }
    return total;
  }
  vec even = {0}, odd = {0};
  int64_t c = 0;
  for (; c + 2 * W <= d; c += 2 * W) {
    even += NAME(mix)(row, weight, J, c) * NAME(load)(x + c);
    odd += NAME(mix)(row, weight, J, c + W) * NAME(load)(x + c + W);
  }
  if (c + W <= d) even += NAME(mix)(row, weight, J, c) * NAME(load)(x + c);
  if (d % W) odd += NAME(mix)(row, weight, J, d - W) * (rest * NAME(load)(x + d - W));
  return NAME(sum)(even + odd);
}

INLINE void NAME(move)(REAL *x, REAL scale, const REAL *row, const REAL *push, int64_t d, vec rest) {
  if (d < W) {
    for (int64_t c = 0; c < d; c++) x[c] += scale * row[c] + push[c];
    return;
  }
  for (int64_t c = 0; c + W <= d; c += W)
    NAME(store)(x + c, NAME(load)(x + c) + (scale * NAME(load)(row + c) + NAME(load)(push + c)));
  if (d % W) {
    const int64_t c = d - W;
    NAME(store)(x + c, NAME(load)(x + c) + rest * (scale * NAME(load)(row + c) + NAME(load)(push + c)));
  }
}

/* J is constant where this is called with a number. */
INLINE void NAME(rank_one_lanes)(const struct rank_one *r, int64_t J, int64_t first, int64_t lanes, REAL *push) {
  const int64_t K = r->K, H = r->H, d = r->d;
  const vec rest = NAME(rest)(d);
  struct lane lane_of[NAME(LANES)];
  for (int64_t l = 0; l < lanes; l++) {
    const int64_t m = (first + l) / K, k = (first + l) % K;
    struct lane *one = lane_of + l;
    one->x = (REAL *)r->out + (first + l) * d;
    one->theta = NAME(of)(r->theta, m) + k * d;
    one->table = NAME(of)(r->table, m);
    one->constant = (const REAL *)r->constant + m * H * K + k;
    for (int64_t j = 0; j < J; j++) {
      one->row[j] = r->rows[j] + m * H * K + k;
      one->weight[j] = NAME(of)(r->weights[j], m) + (r->weight_of_step[j] ? k : 0);
    }
    if (!r->eta.data) continue;
    one->eta = *NAME(of)(r->eta, m);
    const REAL *shift = NAME(of)(r->shift, m), *minus = NAME(of)(r->minus, m);
    NAME(set_push)(push + l * d, one->eta, shift ? shift + k * d : NULL, minus ? minus + k * d : NULL, d);
    memcpy(one->x, one->theta, sizeof(REAL) * (size_t)d);
  }
  for (int64_t h = r->start; h < r->stop; h++) {
    for (int64_t l = 0; l < lanes; l++) {
      const struct lane *one = lane_of + l;
      const REAL *row[MOST_ROWS];
      REAL weight[MOST_ROWS];
      for (int64_t j = 0; j < J; j++) {
        row[j] = one->table + inside(one->row[j][h * K], r->S) * d;
        weight[j] = one->weight[j][r->weight_of_step[j] ? h * K : 0];
      }
      const REAL *at = r->eta.data ? one->x : one->theta;
      const REAL error = one->constant[h * K] + NAME(mixed_dot)(row, weight, J, at, d, rest);
      if (r->eta.data)
        NAME(move)(one->x, one->eta * error, row[0], push + l * d, d, rest);
      else
        for (int64_t c = 0; c < d; c++) one->x[c] = error * row[0][c];
    }
  }
}

static bool NAME(rank_one)(const struct rank_one *r) {
  REAL *push = malloc(sizeof(REAL) * (size_t)(NAME(LANES) * r->d + 1));
  if (!push) return false;
  for (int64_t first = 0; first < r->M * r->K; first += NAME(LANES)) {
    const int64_t left = r->M * r->K - first, lanes = left < NAME(LANES) ? left : NAME(LANES);
    switch (r->J) {
    case 1: NAME(rank_one_lanes)(r, 1, first, lanes, push); break;
    case 2: NAME(rank_one_lanes)(r, 2, first, lanes, push); break;
    default: NAME(rank_one_lanes)(r, r->J, first, lanes, push);
    }
  }
  free(push);
  return true;
}

/* Affine operators. */

/* y[s][r] = A[r] . x[s] for `rows` rows and `seeds` seeds: every vector that is loaded is used several times. */
INLINE void NAME(tile)(const REAL *A, int64_t d, int rows, int seeds, const REAL *const *x, REAL *const *y, int64_t r,
                       vec rest) {
  vec total[4][4];
  for (int i = 0; i < rows; i++)
    for (int s = 0; s < seeds; s++) total[i][s] = (vec){0};
  const REAL *a = A + r * d;
  for (int64_t c = 0; c + W <= d; c += W) {
    vec v[4];
    for (int s = 0; s < seeds; s++) v[s] = NAME(load)(x[s] + c);
    for (int i = 0; i < rows; i++) {
      const vec row = NAME(load)(a + i * d + c);
      for (int s = 0; s < seeds; s++) total[i][s] += row * v[s];
    }
  }
  if (d % W && d >= W) {
    const int64_t c = d - W;
    for (int i = 0; i < rows; i++) {
      const vec row = rest * NAME(load)(a + i * d + c);
      for (int s = 0; s < seeds; s++) total[i][s] += row * NAME(load)(x[s] + c);
    }
  }
  for (int i = 0; i < rows; i++)
    for (int s = 0; s < seeds; s++) {
      REAL sum = NAME(sum)(total[i][s]);
      if (d < W)
        for (int64_t c = 0; c < d; c++) sum += a[i * d + c] * x[s][c];
      y[s][r + i] = sum;
    }
}

INLINE void NAME(tiles)(const REAL *A, int64_t d, int rows, int64_t count, const REAL *const *x, REAL *const *y,
                        int64_t r, vec rest) {
  int64_t s = 0;
  for (; s + 4 <= count; s += 4) NAME(tile)(A, d, rows, 4, x + s, y + s, r, rest);
  switch (count - s) {
  case 3: NAME(tile)(A, d, rows, 3, x + s, y + s, r, rest); break;
  case 2: NAME(tile)(A, d, rows, 2, x + s, y + s, r, rest); break;
  case 1: NAME(tile)(A, d, rows, 1, x + s, y + s, r, rest); break;
  }
}

/* Products of one matrix with `count` vectors: the rows outside, so that the matrix passes through the cache once. */
static void NAME(products)(const REAL *A, int64_t d, int64_t count, const REAL *const *x, REAL *const *y) {
  const vec rest = NAME(rest)(d);
  int64_t r = 0;
  for (; r + TILE_ROWS <= d; r += TILE_ROWS) NAME(tiles)(A, d, TILE_ROWS, count, x, y, r, rest);
  for (; r < d; r++) NAME(tiles)(A, d, 1, count, x, y, r, rest);
}

/* Large matrices: the seeds at one component share its products. */
static bool NAME(affine_rows)(const struct affine *a) {
  const int64_t K = a->K, H = a->H, N = a->N, d = a->d;
  REAL *product = malloc(sizeof(REAL) * (size_t)(2 * K * d + 1)), *push = product + K * d;
  const REAL **x = malloc(2 * sizeof(REAL *) * (size_t)(K + 1));
  if (!product || !x) {
    free(product), free(x);
    return false;
  }
  REAL **y = (REAL **)(x + K);
  for (int64_t m = 0; m < a->M; m++) {
    const REAL *A = NAME(of)(a->A, m), *b = NAME(of)(a->b, m);
    const REAL *theta = NAME(of)(a->theta, m), eta = a->eta.data ? *NAME(of)(a->eta, m) : 1;
    REAL *out = (REAL *)a->out + m * K * d;
    if (a->eta.data) {
      NAME(set_push)(push, eta, NAME(of)(a->shift, m), NAME(of)(a->minus, m), K * d);
      memcpy(out, theta, sizeof(REAL) * (size_t)(K * d));
    }
    for (int64_t h = a->start; h < a->stop; h++) {
      const int32_t *component = a->component ? a->component + (m * H + h) * K : NULL;
      for (int64_t n = 0; n < N; n++) {
        int64_t count = 0;
        for (int64_t k = 0; k < K; k++)
          if (!component || inside(component[k], N) == n) {
            x[count] = (a->eta.data ? out : theta) + k * d;
            y[count++] = product + k * d;
          }
        NAME(products)(A + n * d * d, d, count, x, y);
      }
      for (int64_t k = 0; k < K; k++) {
        const REAL *bias = b + (component ? inside(component[k], N) : 0) * d, *p = product + k * d, *q = push + k * d;
        const REAL *noise = a->noise ? (const REAL *)a->noise + (m * H + h) * d * K + k : NULL;
        REAL *restrict to = out + k * d;
        if (a->eta.data)
          for (int64_t c = 0; c < d; c++) to[c] += eta * (bias[c] - p[c]) + q[c];
        else
          for (int64_t c = 0; c < d; c++) to[c] = bias[c] - p[c];
        if (noise)
          for (int64_t c = 0; c < d; c++) to[c] += eta * noise[c * K];
      }
    }
  }
  free(product), free(x);
  return true;
}

enum { NAME(SMALL) = 32 };

/* Y = A X for W vectors side by side, four rows at a time. */
INLINE void NAME(side_by_side)(const REAL *A, int64_t d, const vec *X, vec *Y) {
  int64_t r = 0;
  for (; r + 4 <= d; r += 4) {
    vec t0 = {0}, t1 = {0}, t2 = {0}, t3 = {0};
    for (int64_t c = 0; c < d; c++) {
      const REAL *a = A + r * d + c;
      t0 += a[0] * X[c], t1 += a[d] * X[c], t2 += a[2 * d] * X[c], t3 += a[3 * d] * X[c];
    }
    Y[r] = t0, Y[r + 1] = t1, Y[r + 2] = t2, Y[r + 3] = t3;
  }
  for (; r < d; r++) {
    vec total = {0};
    for (int64_t c = 0; c < d; c++) total += A[r * d + c] * X[c];
    Y[r] = total;
  }
}

/* `seeds` numbers, one for each lane; the other lanes are zero. */
INLINE vec NAME(lanes)(const REAL *x, int64_t stride, int64_t seeds) {
  if (stride == 1 && seeds == W) return NAME(load)(x);
  REAL parts[VECTOR_BYTES / sizeof(REAL)] = {0};
  for (int64_t l = 0; l < seeds; l++) parts[l] = x[l * stride];
  return NAME(load)(parts);
}

INLINE void NAME(unlanes)(REAL *x, int64_t stride, int64_t seeds, vec v) {
  if (stride == 1 && seeds == W) {
    NAME(store)(x, v);
    return;
  }
  REAL parts[VECTOR_BYTES / sizeof(REAL)];
  NAME(store)(parts, v);
  for (int64_t l = 0; l < seeds; l++) x[l * stride] = parts[l];
}

/* Small matrices that all seeds share: each seed is a lane of the vector registers. */
static void NAME(affine_lanes)(const struct affine *a) {
  const int64_t K = a->K, H = a->H, d = a->d;
  vec X[NAME(SMALL)], Y[NAME(SMALL)], push[NAME(SMALL)];
  for (int64_t m = 0; m < a->M; m++) {
    const REAL *A = NAME(of)(a->A, m), *b = NAME(of)(a->b, m);
    const REAL eta = a->eta.data ? *NAME(of)(a->eta, m) : 1;
    const REAL *theta = NAME(of)(a->theta, m), *shift = NAME(of)(a->shift, m), *minus = NAME(of)(a->minus, m);
    for (int64_t k = 0; k < K; k += W) {
      const int64_t seeds = K - k < W ? K - k : W, at = (m * K + k) * d;
      for (int64_t c = 0; c < d; c++) {
        X[c] = NAME(lanes)(theta + k * d + c, d, seeds);
        push[c] = (vec){0} + b[c];
        if (shift) push[c] += NAME(lanes)(shift + k * d + c, d, seeds);
        if (minus) push[c] -= NAME(lanes)(minus + k * d + c, d, seeds);
        push[c] *= eta;
      }
      for (int64_t h = a->start; h < a->stop; h++) {
        NAME(side_by_side)(A, d, X, Y);
        for (int64_t c = 0; c < d; c++) {
          vec step = push[c] - eta * Y[c];
          if (a->noise) step += eta * NAME(lanes)((const REAL *)a->noise + ((m * H + h) * d + c) * K + k, 1, seeds);
          X[c] = a->eta.data ? X[c] + step : step;
        }
      }
      for (int64_t c = 0; c < d; c++) NAME(unlanes)((REAL *)a->out + at + c, d, seeds, X[c]);
    }
  }
}

enum { NAME(WIDE) = 2 * VECTOR_BYTES / sizeof(REAL) }; /* coordinates by columns: one or two vectors */
INLINE int64_t NAME(vectors)(int64_t d) { return (d + W - 1) / W; }

/* y += A x by columns, which `columns` holds one after the other, each filled up to whole vectors. */
INLINE void NAME(by_columns)(const REAL *columns, int64_t d, const REAL *x, vec *y, int vectors) {
  for (int64_t c = 0; c < d; c++)
    for (int v = 0; v < vectors; v++) y[v] += x[c] * NAME(load)(columns + (c * vectors + v) * W);
}

static void NAME(to_columns)(const REAL *A, int64_t d, REAL *columns, int vectors) {
  memset(columns, 0, sizeof(REAL) * (size_t)(d * vectors * W));
  for (int64_t r = 0; r < d; r++)
    for (int64_t c = 0; c < d; c++) columns[c * vectors * W + r] = A[r * d + c];
}

/* Small matrices, too few seeds at one to fill the lanes: the coordinates of one parameter are the lanes. */
INLINE void NAME(affine_columns_of)(const struct affine *a, int vectors, REAL *columns) {
  const int64_t K = a->K, H = a->H, N = a->N, d = a->d;
  for (int64_t m = 0; m < a->M; m++) {
    const REAL *A = NAME(of)(a->A, m), *b = NAME(of)(a->b, m);
    const REAL eta = a->eta.data ? *NAME(of)(a->eta, m) : 1;
    const REAL *theta = NAME(of)(a->theta, m), *shift = NAME(of)(a->shift, m), *minus = NAME(of)(a->minus, m);
    for (int64_t n = 0; n < N; n++) NAME(to_columns)(A + n * d * d, d, columns + n * d * vectors * W, vectors);
    for (int64_t k = 0; k < K; k++) {
      const int64_t at = (m * K + k) * d;
      REAL x[NAME(WIDE)] = {0}, push[NAME(WIDE)] = {0}, bias[NAME(WIDE)] = {0};
      memcpy(x, theta + k * d, sizeof(REAL) * (size_t)d);
      NAME(set_push)(push, 1, shift ? shift + k * d : NULL, minus ? minus + k * d : NULL, d);
      for (int64_t h = a->start; h < a->stop; h++) {
        const int64_t n = a->component ? inside(a->component[(m * H + h) * K + k], N) : 0;
        vec y[2];
        for (int v = 0; v < vectors; v++) y[v] = (vec){0};
        NAME(by_columns)(columns + n * d * vectors * W, d, x, y, vectors);
        for (int64_t c = 0; c < d; c++) bias[c] = b[n * d + c] + push[c];
        if (a->noise)
          for (int64_t c = 0; c < d; c++) bias[c] += ((const REAL *)a->noise)[((m * H + h) * d + c) * K + k];
        for (int v = 0; v < vectors; v++) {
          const vec g = NAME(load)(bias + v * W) - y[v];
          NAME(store)(x + v * W, a->eta.data ? NAME(load)(x + v * W) + eta * g : g);
        }
      }
      memcpy((REAL *)a->out + at, x, sizeof(REAL) * (size_t)d);
    }
  }
}

static bool NAME(affine_columns)(const struct affine *a) {
  REAL *columns = malloc(sizeof(REAL) * (size_t)(a->N * a->d * 2 * W + 1));
  if (!columns) return false;
  if (NAME(vectors)(a->d) == 1)
    NAME(affine_columns_of)(a, 1, columns);
  else
    NAME(affine_columns_of)(a, 2, columns);
  free(columns);
  return true;
}

static bool NAME(affine)(const struct affine *a) {
  if (a->d <= NAME(SMALL) && a->N == 1 && 2 * a->K >= W) {
    NAME(affine_lanes)(a);
    return true;
  }
  return NAME(vectors)(a->d) <= 2 && a->N <= a->K * a->H ? NAME(affine_columns)(a) : NAME(affine_rows)(a);
}

/* Normal numbers by the Box-Muller transform, from the same words and with the same series as `fedhsa._random`. */

INLINE REAL NAME(log)(REAL u) {
#if BITS == 64
  int64_t bits;
  memcpy(&bits, &u, sizeof u);
  int64_t exponent = (bits - 0x3FE6A09E667F3BCD) >> 52; /* so that the mantissa is from sqrt(1/2) to sqrt(2) */
  bits -= (int64_t)((uint64_t)exponent << 52);
#else
  int32_t bits;
  memcpy(&bits, &u, sizeof u);
  int32_t exponent = (bits - 0x3F3504F3) >> 23;
  bits -= (int32_t)((uint32_t)exponent << 23);
#endif
  REAL mantissa;
  memcpy(&mantissa, &bits, sizeof u);
  const REAL s = (mantissa - 1) / (mantissa + 1), z = s * s; /* log m = 2 artanh s */
  REAL series = 0;
  for (int n = BITS == 64 ? 10 : 5; n >= 0; n--) series = series * z + (REAL)(2.0 / (2 * n + 1));
  return (REAL)exponent * (REAL)0.69314718055994530942 + s * series;
}

INLINE void NAME(normal_pair)(uint32_t first, uint32_t second, REAL *cosine_part, REAL *sine_part) {
  const REAL radius = (REAL)SQRT(-2 * NAME(log)(((REAL)first + (REAL)0.5) * (REAL)0x1p-32));
  const REAL angle = (REAL)(second >> 2) * (REAL)0x1p-30 * (REAL)1.57079632679489661923, square = angle * angle;
  static const double FACTORIALS[] = {1, 1, 2, 6, 24, 120, 720, 5040, 40320, 362880, 3628800, 39916800, 479001600,
                                      6227020800, 87178291200, 1307674368000, 20922789888000, 355687428096000,
                                      6402373705728000, 121645100408832000, 2432902008176640000,
                                      51090942171709440000.0};
  REAL cosine = 0, sine = 0;
  for (int k = BITS == 64 ? 10 : 6; k >= 0; k--) {
    const double sign = k % 2 ? -1 : 1;
    cosine = cosine * square + (REAL)(sign / FACTORIALS[2 * k]);
    sine = sine * square + (REAL)(sign / FACTORIALS[2 * k + 1]);
  }
  const REAL real = radius * cosine, imaginary = radius * angle * sine;
  *cosine_part = second & 1 ? -real : real;
  *sine_part = second & 2 ? -imaginary : imaginary;
}

/* The vectors of some keys, laid out (agents * H, d, K). A block of keys at a time, which the compiler turns into vectors;
 * `place` is where the vector of each begins. */
static void NAME(normals)(const uint32_t *key_0, const uint32_t *key_1, int64_t count, int64_t d, int64_t K, REAL *out) {
  enum { BLOCK = 64 };
  const int64_t half = (d + 1) / 2;
  int64_t place[BLOCK];
  REAL front[BLOCK], back[BLOCK];
  for (int64_t start = 0; start < count; start += BLOCK) {
    const int64_t size = count - start < BLOCK ? count - start : BLOCK;
    for (int64_t i = 0; i < size; i++) place[i] = (start + i) / K * d * K + (start + i) % K;
    for (int64_t c = 0; c < half; c++) {
      for (int64_t i = 0; i < size; i++) {
        uint32_t first = 1, second = (uint32_t)c;
        threefry(key_0[start + i], key_1[start + i], &first, &second);
        NAME(normal_pair)(first, second, front + i, back + i);
      }
      for (int64_t i = 0; i < size; i++) out[place[i] + c * K] = front[i];
      if (half + c < d)
        for (int64_t i = 0; i < size; i++) out[place[i] + (half + c) * K] = back[i];
    }
  }
}

/* The chain of one agent, given its noise (H, d, K). As in affine steps, seeds are the lanes, or coordinates, or rows
 * share vectors. */

static void NAME(walk_lanes)(const struct normal_walk *w, int64_t m, const REAL *noise) {
  const int64_t K = w->K, H = w->H, d = w->d;
  const REAL *Q = NAME(of)(w->Q, m), std = *NAME(of)(w->std, m);
  REAL *states = (REAL *)w->states + m * H * d * K;
  vec X[NAME(SMALL)], Y[NAME(SMALL)];
  for (int64_t k = 0; k < K; k += W) {
    const int64_t seeds = K - k < W ? K - k : W, at = (m * K + k) * d;
    for (int64_t c = 0; c < d; c++) X[c] = NAME(lanes)((const REAL *)w->state + at + c, d, seeds);
    for (int64_t h = 0; h < H; h++) {
      const int64_t now = h * d * K + k;
      for (int64_t c = 0; c < d; c++) NAME(unlanes)(states + now + c * K, 1, seeds, X[c]);
      NAME(side_by_side)(Q, d, X, Y);
      for (int64_t c = 0; c < d; c++) X[c] = Y[c] + std * NAME(lanes)(noise + now + c * K, 1, seeds);
    }
    for (int64_t c = 0; c < d; c++) NAME(unlanes)((REAL *)w->last + at + c, d, seeds, X[c]);
  }
}

INLINE void NAME(walk_columns)(const struct normal_walk *w, int64_t m, const REAL *noise, int vectors, REAL *columns) {
  const int64_t K = w->K, H = w->H, d = w->d;
  const REAL std = *NAME(of)(w->std, m);
  REAL *states = (REAL *)w->states + m * H * d * K;
  NAME(to_columns)(NAME(of)(w->Q, m), d, columns, vectors);
  for (int64_t k = 0; k < K; k++) {
    REAL x[NAME(WIDE)] = {0}, driven[NAME(WIDE)] = {0};
    memcpy(x, (const REAL *)w->state + (m * K + k) * d, sizeof(REAL) * (size_t)d);
    for (int64_t h = 0; h < H; h++) {
      const int64_t now = h * d * K + k;
      for (int64_t c = 0; c < d; c++) {
        states[now + c * K] = x[c];
        driven[c] = std * noise[now + c * K];
      }
      vec y[2];
      for (int v = 0; v < vectors; v++) y[v] = NAME(load)(driven + v * W);
      NAME(by_columns)(columns, d, x, y, vectors);
      for (int v = 0; v < vectors; v++) NAME(store)(x + v * W, y[v]);
    }
    memcpy((REAL *)w->last + (m * K + k) * d, x, sizeof(REAL) * (size_t)d);
  }
}

static void NAME(walk_rows)(const struct normal_walk *w, int64_t m, const REAL *noise, REAL *product) {
  const int64_t K = w->K, H = w->H, d = w->d;
  const REAL std = *NAME(of)(w->std, m);
  REAL *states = (REAL *)w->states + m * H * d * K;
  for (int64_t k = 0; k < K; k++) {
    REAL *x = (REAL *)w->last + (m * K + k) * d;
    const REAL *from = x;
    memcpy(x, (const REAL *)w->state + (m * K + k) * d, sizeof(REAL) * (size_t)d);
    for (int64_t h = 0; h < H; h++) {
      const int64_t now = h * d * K + k;
      NAME(products)(NAME(of)(w->Q, m), d, 1, &from, &product);
      for (int64_t c = 0; c < d; c++) {
        states[now + c * K] = x[c];
        x[c] = product[c] + std * noise[now + c * K];
      }
    }
  }
}

static bool NAME(normal_walk)(const struct normal_walk *w) {
  const int64_t keys = w->H * w->K, numbers = keys * w->d;
  int64_t agents = numbers ? SCRATCH_BYTES / (numbers * (int64_t)sizeof(REAL)) : w->M;
  agents = agents < 1 ? 1 : agents > w->M ? w->M : agents;
  REAL *noise = malloc(sizeof(REAL) * (size_t)(agents * numbers + 2 * W * w->d + 1)), *room = noise + agents * numbers;
  if (!noise) return false;
  for (int64_t m = 0; m < w->M; m++) {
    const int64_t left = w->M - m, many = left < agents ? left : agents;
    if (m % agents == 0) NAME(normals)(w->first + m * keys, w->second + m * keys, many * keys, w->d, w->K, noise);
    const REAL *mine = noise + m % agents * numbers;
    if (w->d <= NAME(SMALL) && 2 * w->K >= W)
      NAME(walk_lanes)(w, m, mine);
    else if (NAME(vectors)(w->d) == 1)
      NAME(walk_columns)(w, m, mine, 1, room);
    else if (NAME(vectors)(w->d) == 2)
      NAME(walk_columns)(w, m, mine, 2, room);
    else
      NAME(walk_rows)(w, m, mine, room);
  }
  free(noise);
  return true;
}

#undef lane
#undef vec
#undef loose
#undef NAME
#undef W
