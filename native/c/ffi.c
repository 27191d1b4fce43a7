/* The handlers that XLA calls: they check what arrives, and hand it to the kernels of this processor. */
#include "kernels.h"
#include "xla/ffi/api/c_api.h"

#include <stddef.h>

#if defined(__x86_64__)
#include <cpuid.h>

extern const struct kernels kernels_any, kernels_avx2, kernels_avx512;

/* Whether the system saves the registers of these bits: those of AVX are 0x6, of AVX-512 0xE6. */
static bool saved(unsigned bits) {
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & bits) == bits;
}

/* The kernels for this processor, the best first. */
static int available(const struct kernels *found[3]) {
  unsigned a, b, c, d, features;
  int count = 0;
  if (__get_cpuid(1, &a, &b, &features, &d) && (features & bit_OSXSAVE) && __get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    const unsigned wide = bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL;
    const bool fused = (features & bit_FMA) && (features & bit_AVX) && (features & bit_F16C) && (features & bit_MOVBE);
    const bool avx2 = fused && (b & bit_AVX2) && (b & bit_BMI) && (b & bit_BMI2) && saved(0x6);
    if (avx2 && (b & wide) == wide && saved(0xE6)) found[count++] = &kernels_avx512;
    if (avx2) found[count++] = &kernels_avx2;
  }
  found[count++] = &kernels_any;
  return count;
}
#else
extern const struct kernels kernels_any;

static int available(const struct kernels *found[3]) {
  found[0] = &kernels_any;
  return 1;
}
#endif

static const struct kernels *chosen;

/* Chooses the kernels, 0 for the best; tells how many there are for this processor. */
__attribute__((visibility("default"))) int fedhsa_choose(int number) {
  const struct kernels *found[3];
  const int count = available(found);
  if (number >= 0 && number < count) __atomic_store_n(&chosen, found[number], __ATOMIC_RELEASE);
  return count;
}

static const struct kernels *kernels(void) {
  if (!__atomic_load_n(&chosen, __ATOMIC_ACQUIRE)) fedhsa_choose(0);
  return __atomic_load_n(&chosen, __ATOMIC_ACQUIRE);
}

typedef XLA_FFI_CallFrame Frame;
typedef const XLA_FFI_Buffer Buffer;

static XLA_FFI_Error *fail(Frame *frame, XLA_FFI_Error_Code code, const char *message) {
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, NULL, message, code};
  return frame->api->XLA_FFI_Error_Create(&args);
}

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define REQUIRE(condition) \
  if (!(condition)) \
  return fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT, "fedhsa-native, " __FILE__ ":" TEXT(__LINE__) ": expected " #condition)
#define DONE(done) return (done) ? NULL : fail(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "fedhsa-native: no memory")

/* XLA asks for the version before it calls. */
static bool asks_for_version(Frame *frame) {
  XLA_FFI_Extension_Base *extension = frame->extension_start;
  if (!extension || extension->type != XLA_FFI_Extension_Metadata) return false;
  XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)extension)->metadata;
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  metadata->api_version.minor_version = XLA_FFI_API_MINOR;
  metadata->traits = 0;
  return true;
}

static Buffer *argument(Frame *frame, int64_t i) { return frame->args.args[i]; }
static Buffer *result(Frame *frame, int64_t i) { return frame->rets.rets[i]; }

static bool has_shape(Buffer *x, int64_t rank, const int64_t *dims) {
  if (x->rank != rank) return false;
  for (int64_t i = 0; i < rank; i++)
    if (x->dims[i] != dims[i]) return false;
  return true;
}
#define SHAPE(x, ...) \
  has_shape(x, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (const int64_t[]){__VA_ARGS__})

static bool is_empty(Buffer *x) {
  for (int64_t i = 0; i < x->rank; i++)
    if (x->dims[i] == 0) return true;
  return false;
}

/* An array that agents may share; one without elements is absent. */
static struct own own(Buffer *x) {
  int64_t size = 1;
  for (int64_t i = 1; i < x->rank; i++) size *= x->dims[i];
  return (struct own){is_empty(x) ? NULL : x->data, x->rank > 0 && x->dims[0] == 1 ? 0 : size};
}
static bool serves(Buffer *x, int64_t M) { return x->rank > 0 && (x->dims[0] == M || x->dims[0] == 1); }
static const void *optional(Buffer *x) { return is_empty(x) ? NULL : x->data; }

static bool is_real(Buffer *x) { return x->dtype == XLA_FFI_DataType_F64 || x->dtype == XLA_FFI_DataType_F32; }
static int precision(Buffer *x) { return x->dtype == XLA_FFI_DataType_F64; }

#define HANDLER(name) \
  __attribute__((visibility("default"))) XLA_FFI_Error *name(Frame *frame); \
  XLA_FFI_Error *name(Frame *frame)

static bool has_words(Buffer *x) { return x->dtype == XLA_FFI_DataType_U32 && x->rank == 3; }

HANDLER(fedhsa_walk) {
  if (asks_for_version(frame)) return NULL;
  REQUIRE(frame->args.size == 4 && frame->rets.size == 2);
  Buffer *first = argument(frame, 0), *second = argument(frame, 1);
  Buffer *table = argument(frame, 2), *state = argument(frame, 3);
  REQUIRE(has_words(first) && has_words(second));
  const int64_t M = first->dims[0], K = first->dims[1], H = first->dims[2];
  REQUIRE(SHAPE(second, M, K, H));
  REQUIRE(table->rank == 4 && table->dtype == XLA_FFI_DataType_U32 && serves(table, M));
  const int64_t S = table->dims[1];
  REQUIRE(S > 0 && table->dims[2] == S && table->dims[3] == 2);
  REQUIRE(state->dtype == XLA_FFI_DataType_S32 && SHAPE(state, M, K));
  REQUIRE(SHAPE(result(frame, 0), M, K, H) && SHAPE(result(frame, 1), M, K, H));
  const struct walk w = {
      .M = M, .K = K, .H = H, .S = S, .first = first->data, .second = second->data,
      .table = own(table), .state = state->data,
      .states = result(frame, 0)->data, .following = result(frame, 1)->data,
  };
  kernels()->walk(&w);
  return NULL;
}

HANDLER(fedhsa_normal_walk) {
  if (asks_for_version(frame)) return NULL;
  REQUIRE(frame->args.size == 5 && frame->rets.size == 2);
  Buffer *first = argument(frame, 0), *second = argument(frame, 1);
  Buffer *Q = argument(frame, 2), *std = argument(frame, 3), *state = argument(frame, 4);
  REQUIRE(has_words(first) && has_words(second));
  const int64_t M = first->dims[0], K = first->dims[1], H = first->dims[2];
  REQUIRE(SHAPE(second, M, K, H) && is_real(state) && state->rank == 3);
  const int64_t d = state->dims[2];
  REQUIRE(SHAPE(state, M, K, d));
  REQUIRE(Q->dtype == state->dtype && serves(Q, M) && SHAPE(Q, Q->dims[0], d, d));
  REQUIRE(std->dtype == state->dtype && serves(std, M) && std->rank == 1);
  REQUIRE(SHAPE(result(frame, 0), M, K, d) && SHAPE(result(frame, 1), M, K, H, d));
  const struct normal_walk w = {
      .M = M, .K = K, .H = H, .d = d, .first = first->data, .second = second->data, .Q = own(Q), .std = own(std),
      .state = state->data, .last = result(frame, 0)->data, .states = result(frame, 1)->data,
  };
  DONE(kernels()->normal_walk[precision(state)](&w));
}

/* Which steps are taken: the attributes `start` and `stop`, in the order of their names. */
struct range {
  int64_t start, stop;
  bool good;
};
static struct range range(Frame *frame, Buffer *eta) {
  struct range r = {0, 0, false};
  if (frame->attrs.size != 2) return r;
  for (int i = 0; i < 2; i++) {
    const XLA_FFI_Scalar *scalar = frame->attrs.attrs[i];
    if (frame->attrs.types[i] != XLA_FFI_AttrType_SCALAR || scalar->dtype != XLA_FFI_DataType_S64) return r;
  }
  r.start = *(const int64_t *)((const XLA_FFI_Scalar *)frame->attrs.attrs[0])->value;
  r.stop = *(const int64_t *)((const XLA_FFI_Scalar *)frame->attrs.attrs[1])->value;
  r.good = 0 <= r.start && r.start <= r.stop && (!is_empty(eta) || r.stop == r.start + 1);
  return r;
}

/* What steps and operators of both kinds begin with: theta, shift, minus, eta. An operator has only the first. */
static bool begins_well(Frame *frame, int64_t M, int64_t K, int64_t d) {
  Buffer *theta = argument(frame, 0), *eta = argument(frame, 3);
  if (!is_real(theta) || eta->dtype != theta->dtype || eta->rank != 1 || !(is_empty(eta) || serves(eta, M))) return false;
  for (int64_t i = 0; i < 3; i++) {
    Buffer *x = argument(frame, i);
    if (x->dtype != theta->dtype) return false;
    if (i > 0 && is_empty(x)) continue;
    if (!serves(x, M) || !SHAPE(x, x->dims[0], K, d)) return false;
  }
  return true;
}

/* Arguments: theta, shift, minus, eta, table, constant, then the rows and the weights, as many of each. */
HANDLER(fedhsa_rank_one) {
  if (asks_for_version(frame)) return NULL;
  const int64_t J = (frame->args.size - 6) / 2;
  REQUIRE(J > 0 && J <= MOST_ROWS && frame->args.size == 6 + 2 * J && frame->rets.size == 1);
  Buffer *theta = argument(frame, 0), *eta = argument(frame, 3), *table = argument(frame, 4), *constant = argument(frame, 5);
  Buffer *out = result(frame, 0);
  REQUIRE(out->rank == 3 && out->dtype == theta->dtype);
  const int64_t M = out->dims[0], K = out->dims[1], d = out->dims[2];
  REQUIRE(begins_well(frame, M, K, d));
  REQUIRE(table->rank == 3 && table->dtype == theta->dtype && serves(table, M) && table->dims[1] > 0 && table->dims[2] == d);
  REQUIRE(constant->dtype == theta->dtype && constant->rank == 3);
  const int64_t H = constant->dims[2];
  const struct range steps = range(frame, eta);
  REQUIRE(SHAPE(constant, M, K, H) && steps.good && steps.stop <= H);
  struct rank_one r = {
      .M = M, .K = K, .H = H, .S = table->dims[1], .J = J, .d = d, .start = steps.start, .stop = steps.stop, .theta = own(theta),
      .shift = own(argument(frame, 1)), .minus = own(argument(frame, 2)), .eta = own(eta),
      .table = own(table), .constant = constant->data, .out = out->data,
  };
  for (int64_t j = 0; j < J; j++) {
    Buffer *row = argument(frame, 6 + j), *weight = argument(frame, 6 + J + j);
    REQUIRE(row->dtype == XLA_FFI_DataType_S32 && SHAPE(row, M, K, H));
    REQUIRE(weight->dtype == theta->dtype && serves(weight, M) && (weight->rank == 1 || SHAPE(weight, weight->dims[0], K, H)));
    r.rows[j] = row->data, r.weights[j] = own(weight), r.weight_of_step[j] = weight->rank == 3;
  }
  DONE(kernels()->rank_one[precision(theta)](&r));
}

/* Arguments: theta, shift, minus, eta, A, b, component, noise. */
HANDLER(fedhsa_affine) {
  if (asks_for_version(frame)) return NULL;
  REQUIRE(frame->args.size == 8 && frame->rets.size == 1);
  Buffer *theta = argument(frame, 0), *eta = argument(frame, 3), *A = argument(frame, 4), *b = argument(frame, 5);
  Buffer *component = argument(frame, 6), *noise = argument(frame, 7), *out = result(frame, 0);
  REQUIRE(out->rank == 3 && out->dtype == theta->dtype);
  const int64_t M = out->dims[0], K = out->dims[1], d = out->dims[2];
  const struct range steps = range(frame, eta);
  REQUIRE(begins_well(frame, M, K, d) && steps.good);
  REQUIRE(A->rank == 4 && A->dtype == theta->dtype && serves(A, M));
  const int64_t N = A->dims[1];
  REQUIRE(N > 0 && A->dims[2] == d && A->dims[3] == d);
  REQUIRE(b->dtype == theta->dtype && serves(b, M) && SHAPE(b, b->dims[0], N, d));
  /* How long a block is, if it has anything in it. */
  const int64_t H = !is_empty(component) && component->rank == 3 ? component->dims[2] : is_empty(noise) || noise->rank != 4 ? steps.stop : noise->dims[2];
  REQUIRE(steps.stop <= H);
  REQUIRE(is_empty(component) || (component->dtype == XLA_FFI_DataType_S32 && SHAPE(component, M, K, H)));
  REQUIRE(is_empty(noise) || (noise->dtype == theta->dtype && SHAPE(noise, M, K, H, d)));
  const struct affine a = {
      .M = M, .K = K, .H = H, .N = is_empty(component) ? 1 : N, .d = d,
      .start = steps.start, .stop = steps.stop, .theta = own(theta),
      .shift = own(argument(frame, 1)), .minus = own(argument(frame, 2)), .eta = own(eta),
      .A = own(A), .b = own(b), .component = optional(component), .noise = optional(noise), .out = out->data,
  };
  DONE(kernels()->affine[precision(theta)](&a));
}
