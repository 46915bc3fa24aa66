/* Instructions on registers, for the 32 lanes of a warp.
 *
 * `ops` is an array of seven integers an instruction: the operation (the enumeration is generated from the table in
 * `encode.py`), destination and up to four sources as rows of their class, and the guard.  `registers` holds the
 * register files of the warp by class (16, 32, 64 bits, predicates as bytes) and the parameters of the entry.
 *
 * An operation whose result has a NaN is left to NumPy, which decides on its payload: `run_lanes` returns the index
 * of the first instruction that it has not executed.
 */

typedef struct { int32_t code, d, a, b, c, e, guard; } Op;

#define LANES(EXPRESSION)                                             \
  do {                                                                \
    if (!m) { for (int i = 0; i < 32; i++) { EXPRESSION; } }          \
    else { for (int i = 0; i < 32; i++) if (m[i]) { EXPRESSION; } }   \
  } while (0)

#define R16(x) (r16 + 32 * (x))
#define R32(x) (r32 + 32 * (x))
#define R64(x) (r64 + 32 * (x))
#define RP(x) (rp + 32 * (x))

/* Two sources of one class; `T` is the type in which the operation is done. */
#define BINARY(NAME, ROW, T, EXPRESSION)                                                              \
  case NAME: { T *d = (T *)ROW(o->d); const T *a = (const T *)ROW(o->a), *b = (const T *)ROW(o->b);    \
    LANES(T x = a[i]; T y = b[i]; d[i] = (EXPRESSION)); break; }
#define UNARY(NAME, ROW, T, EXPRESSION)                                                               \
  case NAME: { T *d = (T *)ROW(o->d); const T *a = (const T *)ROW(o->a);                               \
    LANES(T x = a[i]; d[i] = (EXPRESSION)); break; }
#define TERNARY(NAME, ROW, T, EXPRESSION)                                                             \
  case NAME: { T *d = (T *)ROW(o->d); const T *a = (const T *)ROW(o->a), *b = (const T *)ROW(o->b),    \
    *c = (const T *)ROW(o->c); LANES(T x = a[i]; T y = b[i]; T z = c[i]; d[i] = (EXPRESSION)); break; }
/* The amount of a shift is 32 bits whatever is shifted. */
#define SHIFT(NAME, ROW, T, EXPRESSION)                                                               \
  case NAME: { T *d = (T *)ROW(o->d); const T *a = (const T *)ROW(o->a); const uint32_t *b = R32(o->b); \
    LANES(T x = a[i]; uint32_t y = b[i]; d[i] = (EXPRESSION)); break; }
#define COMPARE(NAME, ROW, T, EXPRESSION)                                                             \
  case NAME: { const T *a = (const T *)ROW(o->a), *b = (const T *)ROW(o->b);                           \
    for (int i = 0; i < 32; i++) { T x = a[i]; T y = b[i]; truth[i] = (EXPRESSION); }                 \
    combine(truth, RP(o->d), o->c < 0 ? 0 : RP(o->c >> 3), o->c & 7, m); break; }
#define COMPARISONS(ROW, T, NAME)                                                                     \
  COMPARE(OP_EQ_##NAME, ROW, T, x == y) COMPARE(OP_NE_##NAME, ROW, T, x != y)                         \
  COMPARE(OP_LT_##NAME, ROW, T, x < y) COMPARE(OP_LE_##NAME, ROW, T, x <= y)                          \
  COMPARE(OP_GT_##NAME, ROW, T, x > y) COMPARE(OP_GE_##NAME, ROW, T, x >= y)
#define INTEGERS(ROW, UT, ST, BITS)                                                                     \
  BINARY(OP_ADD_##BITS, ROW, UT, x + y) BINARY(OP_SUB_##BITS, ROW, UT, x - y)                           \
  BINARY(OP_MUL_##BITS, ROW, UT, (UT)((uint64_t)x * (uint64_t)y))                                       \
  TERNARY(OP_MAD_##BITS, ROW, UT, (UT)((uint64_t)x * (uint64_t)y + z))                                  \
  BINARY(OP_AND_##BITS, ROW, UT, x & y) BINARY(OP_OR_##BITS, ROW, UT, x | y)                            \
  BINARY(OP_XOR_##BITS, ROW, UT, x ^ y) UNARY(OP_NOT_##BITS, ROW, UT, ~x)                               \
  UNARY(OP_MOV_##BITS, ROW, UT, x) UNARY(OP_NEG_##BITS, ROW, UT, (UT)0 - x)                              \
  BINARY(OP_MIN_U##BITS, ROW, UT, x < y ? x : y) BINARY(OP_MAX_U##BITS, ROW, UT, x > y ? x : y)         \
  BINARY(OP_MIN_S##BITS, ROW, ST, x < y ? x : y) BINARY(OP_MAX_S##BITS, ROW, ST, x > y ? x : y)         \
  BINARY(OP_DIV_U##BITS, ROW, UT, y ? x / y : (UT)-1) BINARY(OP_REM_U##BITS, ROW, UT, y ? x % y : x)       \
  BINARY(OP_DIV_S##BITS, ROW, ST, y == 0 ? -1 : y == -1 ? (ST)((UT)0 - (UT)x) : x / y)                     \
  BINARY(OP_REM_S##BITS, ROW, ST, y == 0 ? x : y == -1 ? 0 : x % y)                                        \
  SHIFT(OP_SHL_##BITS, ROW, UT, y < BITS ? (UT)(x << y) : (UT)0)                                         \
  SHIFT(OP_SHR_U##BITS, ROW, UT, y < BITS ? (UT)(x >> y) : (UT)0)                                        \
  SHIFT(OP_SHR_S##BITS, ROW, ST, (ST)(x >> (y < BITS ? y : BITS - 1)))                                  \
  COMPARISONS(ROW, UT, U##BITS) COMPARISONS(ROW, ST, S##BITS)                                           \
  case OP_SELP_##BITS: { UT *d = (UT *)ROW(o->d); const UT *a = (const UT *)ROW(o->a), *b = (const UT *)ROW(o->b); \
    const uint8_t *p = RP(o->c >> 1); uint8_t n = o->c & 1;                                           \
    LANES(d[i] = (p[i] ^ n) ? a[i] : b[i]); break; }
/* Floats: the result is stored only if none is a NaN. */
#define FLOATS(NAME, EXPRESSION)                                                                      \
  case NAME: { const float *a = (const float *)R32(o->a), *b = (const float *)R32(o->b),               \
    *c = (const float *)R32(o->c); float *d = (float *)R32(o->d); float y[32]; int bad = 0;            \
    (void)b; (void)c;                                                                                 \
    for (int i = 0; i < 32; i++) y[i] = (EXPRESSION);                                                 \
    if (!m) { for (int i = 0; i < 32; i++) bad |= y[i] != y[i]; }                                     \
    else { for (int i = 0; i < 32; i++) bad |= m[i] & (y[i] != y[i]); }                               \
    if (bad) return at;                                                                               \
    LANES(d[i] = y[i]); break; }
/* Functions of a float, made in double: e says whether subnormal numbers are zeros.  Where libraries that differ by a
 * few units in the last place of a double could round to another float, NumPy decides. */
#define APPROXIMATE(NAME, EXPRESSION)                                                                 \
  case NAME: { const float *a = (const float *)R32(o->a); float *d = (float *)R32(o->d), y[32]; int bad = 0; \
    for (int i = 0; i < 32; i++) {                                                                    \
      if (m && !m[i]) continue;                                                                       \
      double x = o->e ? flushed(a[i]) : a[i], z = (EXPRESSION);                                       \
      y[i] = (float)z;                                                                                \
      bad |= y[i] != y[i] || (float)(z * (1 + 1e-14)) != y[i] || (float)(z * (1 - 1e-14)) != y[i];    \
      if (o->e) y[i] = flushed(y[i]);                                                                 \
    }                                                                                                 \
    if (bad) return at;                                                                               \
    LANES(d[i] = y[i]); break; }
/* The same of what every library rounds in one way. */
#define ROUNDED(NAME, EXPRESSION)                                                                     \
  case NAME: { const float *a = (const float *)R32(o->a), *b = (const float *)R32(o->b);               \
    float *d = (float *)R32(o->d), y[32]; int bad = 0;                                                \
    for (int i = 0; i < 32; i++) {                                                                    \
      if (m && !m[i]) continue;                                                                       \
      double x = o->e ? flushed(a[i]) : a[i], v = o->e ? flushed(b[i]) : b[i];                        \
      (void)v;                                                                                        \
      y[i] = (float)(EXPRESSION);                                                                     \
      bad |= y[i] != y[i];                                                                            \
      if (o->e) y[i] = flushed(y[i]);                                                                 \
    }                                                                                                 \
    if (bad) return at;                                                                               \
    LANES(d[i] = y[i]); break; }
/* d = truth, or `truth op (third ^ negated)`; mode: 0 none, 1 and, 2 or, 3 xor, plus 4 for a negated third. */
static void combine(const uint8_t *truth, uint8_t *d, const uint8_t *third, int mode, const uint8_t *m) {
  uint8_t n = mode >> 2 & 1;
  if (!third) { LANES(d[i] = truth[i]); return; }
  switch (mode & 3) {
    case 1: LANES(d[i] = truth[i] & (third[i] ^ n)); break;
    case 2: LANES(d[i] = truth[i] | (third[i] ^ n)); break;
    default: LANES(d[i] = truth[i] ^ third[i] ^ n); break;
  }
}

static inline uint32_t bits_of(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
static inline float float_of(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
static float flushed(float x) { uint32_t u = bits_of(x); return u & 0x7f800000 ? x : float_of(u & 0x80000000); }

/* binary16, rounded to nearest even; not for NaN. */
static uint16_t half_of(float x) {
  uint32_t u = bits_of(x), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
  if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
  if (magnitude < 0x33000001) return (uint16_t)sign;
  int exponent = (int)(magnitude >> 23) - 127;
  uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
  int shift = exponent < -14 ? 13 + (-14 - exponent) : 13;
  uint32_t kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
  kept += rest > half || (rest == half && (kept & 1));
  if (exponent < -14) return (uint16_t)(sign | kept);
  return (uint16_t)(sign | (((uint32_t)(exponent + 15) << 10) + (kept - 0x400)));
}

static inline float from_half(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = (uint32_t)(h & 0x7fff) << 13, e = magnitude & 0x0f800000;
  uint32_t tiny = bits_of((float)(int32_t)(h & 0x3ff) * 5.9604644775390625e-8f);
  return float_of(sign | (e == 0 ? tiny : magnitude + (e == 0x0f800000 ? 0x70000000 : 0x38000000)));
}

/* bfloat16, rounded to nearest even; not for NaN. */
static uint16_t bfloat_of(float x) {
  uint32_t u = bits_of(x);
  return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static uint32_t reversed(uint32_t x) {
  uint32_t out = 0;
  for (int i = 0; i < 32; i++) out |= (x >> i & 1) << (31 - i);
  return out;
}

static uint32_t permute(uint32_t a, uint32_t b, uint32_t selectors) {
  uint64_t both = (uint64_t)b << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; i++) {
    uint32_t s = selectors >> 4 * i & 15, byte = (uint32_t)(both >> 8 * (s & 7)) & 0xff;
    if (s & 8) byte = byte & 0x80 ? 0xff : 0;
    out |= byte << 8 * i;
  }
  return out;
}

static uint32_t lookup(uint32_t a, uint32_t b, uint32_t c, int table) {
  uint32_t out = 0;
  for (int i = 0; i < 8; i++)
    if (table >> i & 1) out |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  return out;
}

static uint32_t extract(uint32_t x, uint32_t p, uint32_t n, int is_signed) {
  p &= 255; n &= 255;
  if (!n) return 0;
  int64_t value = is_signed ? (int64_t)(int32_t)x : (int64_t)x;
  uint64_t field = p < 63 ? (uint64_t)(value >> p) : (uint64_t)(value >> 63);
  if (n < 64) field &= ((uint64_t)1 << n) - 1;
  if (is_signed) {
    uint32_t top = p + n - 1 < 31 ? p + n - 1 : 31;
    if (x >> top & 1 && n < 64) field |= ~(uint64_t)0 << n;
  }
  return (uint32_t)field;
}

static uint32_t insert(uint32_t x, uint32_t y, uint32_t p, uint32_t n) {
  p &= 255; n &= 255;
  if (p > 31 || !n) return y;
  uint64_t mask = ((n < 32 ? (uint64_t)1 << n : (uint64_t)1 << 32) - 1) << p & 0xffffffff;
  return (uint32_t)((y & ~mask) | ((uint64_t)x << p & mask));
}

/* A value cut to an integer type: its bytes, plus 16 where it is signed. */
static int64_t as_type(uint64_t x, int type) {
  switch (type) {
    case 1: return (uint8_t)x;
    case 2: return (uint16_t)x;
    case 4: return (uint32_t)x;
    case 17: return (int8_t)x;
    case 18: return (int16_t)x;
    case 20: return (int32_t)x;
    default: return (int64_t)x;
  }
}

/* b: the bytes of the destination's registers plus 16 times those of the source's; c, e: the types, see above. */
static void convert_integers(void **registers, const Op *o, const uint8_t *m) {
  int64_t value[32];
  int to = o->b & 15, from = o->b >> 4;
  const uint16_t *r16 = registers[0]; const uint32_t *r32 = registers[1]; const uint64_t *r64 = registers[2];
  for (int i = 0; i < 32; i++) {
    uint64_t raw = from == 2 ? R16(o->a)[i] : from == 4 ? R32(o->a)[i] : R64(o->a)[i];
    value[i] = as_type((uint64_t)as_type(raw, o->e), o->c);
  }
  if (to == 2) { uint16_t *d = (uint16_t *)registers[0] + 32 * o->d; LANES(d[i] = (uint16_t)value[i]); }
  else if (to == 4) { uint32_t *d = (uint32_t *)registers[1] + 32 * o->d; LANES(d[i] = (uint32_t)value[i]); }
  else { uint64_t *d = (uint64_t *)registers[2] + 32 * o->d; LANES(d[i] = (uint64_t)value[i]); }
}

/* An integral value; mode: to the nearest, toward zero, down, up. */
static inline double integral(double x, int mode) {
  return mode == 0 ? rint(x) : mode == 1 ? trunc(x) : mode == 2 ? floor(x) : ceil(x);
}

int run_lanes(void **registers, const Op *ops, int count, const uint8_t *mask) {
  uint16_t *r16 = registers[0]; uint32_t *r32 = registers[1]; uint64_t *r64 = registers[2];
  uint8_t *rp = registers[3]; const uint8_t *parameters = registers[4];
  uint8_t guarded[32], truth[32];
  for (int at = 0; at < count; at++) {
    const Op *o = ops + at;
    const uint8_t *m = mask;
    if (o->guard >= 0) {
      const uint8_t *p = RP(o->guard >> 1); uint8_t n = o->guard & 1;
      for (int i = 0; i < 32; i++) guarded[i] = p[i] ^ n;
      if (mask) for (int i = 0; i < 32; i++) guarded[i] &= mask[i];
      m = guarded;
    }
    switch (o->code) {
      INTEGERS(R16, uint16_t, int16_t, 16)
      INTEGERS(R32, uint32_t, int32_t, 32)
      INTEGERS(R64, uint64_t, int64_t, 64)
      BINARY(OP_MULHI_U32, R32, uint32_t, (uint32_t)((uint64_t)x * y >> 32))
      BINARY(OP_MULHI_S32, R32, int32_t, (int32_t)((int64_t)x * y >> 32))
      case OP_MULWIDE_U32: { uint64_t *d = R64(o->d); const uint32_t *a = R32(o->a), *b = R32(o->b);
        LANES(d[i] = (uint64_t)a[i] * b[i]); break; }
      case OP_MULWIDE_S32: { int64_t *d = (int64_t *)R64(o->d); const int32_t *a = (int32_t *)R32(o->a),
        *b = (int32_t *)R32(o->b); LANES(d[i] = (int64_t)a[i] * b[i]); break; }
      case OP_MULWIDE_U16: { uint32_t *d = R32(o->d); const uint16_t *a = R16(o->a), *b = R16(o->b);
        LANES(d[i] = (uint32_t)a[i] * b[i]); break; }
      case OP_MULWIDE_S16: { int32_t *d = (int32_t *)R32(o->d); const int16_t *a = (int16_t *)R16(o->a),
        *b = (int16_t *)R16(o->b); LANES(d[i] = (int32_t)a[i] * b[i]); break; }
      case OP_MADWIDE_U32: { uint64_t *d = R64(o->d); const uint64_t *c = R64(o->c);
        const uint32_t *a = R32(o->a), *b = R32(o->b); LANES(d[i] = (uint64_t)a[i] * b[i] + c[i]); break; }
      case OP_MADWIDE_S32: { uint64_t *d = R64(o->d); const uint64_t *c = R64(o->c);
        const int32_t *a = (int32_t *)R32(o->a), *b = (int32_t *)R32(o->b);
        LANES(d[i] = (uint64_t)((int64_t)a[i] * b[i]) + c[i]); break; }
      TERNARY(OP_PRMT, R32, uint32_t, permute(x, y, z))
      TERNARY(OP_BFE_U32, R32, uint32_t, extract(x, y, z, 0))
      TERNARY(OP_BFE_S32, R32, uint32_t, extract(x, y, z, 1))
      TERNARY(OP_SHF_L_WRAP, R32, uint32_t, (uint32_t)(((uint64_t)y << 32 | x) << (z & 31) >> 32))
      TERNARY(OP_SHF_R_WRAP, R32, uint32_t, (uint32_t)(((uint64_t)y << 32 | x) >> (z & 31)))
      case OP_LOP3: { uint32_t *d = R32(o->d); const uint32_t *a = R32(o->a), *b = R32(o->b), *c = R32(o->c);
        int table = o->e; LANES(d[i] = lookup(a[i], b[i], c[i], table)); break; }
      case OP_BFI: { uint32_t *d = R32(o->d); const uint32_t *a = R32(o->a), *b = R32(o->b), *c = R32(o->c),
        *n = R32(o->e); LANES(d[i] = insert(a[i], b[i], c[i], n[i])); break; }
      UNARY(OP_POPC_32, R32, uint32_t, (uint32_t)__builtin_popcount(x))
      UNARY(OP_CLZ_32, R32, uint32_t, x ? (uint32_t)__builtin_clz(x) : 32)
      UNARY(OP_BREV_32, R32, uint32_t, reversed(x))
      UNARY(OP_BFIND_U32, R32, uint32_t, x ? 31 - (uint32_t)__builtin_clz(x) : 0xffffffff)
      UNARY(OP_BFIND_SHIFT_U32, R32, uint32_t, x ? (uint32_t)__builtin_clz(x) : 0xffffffff)
      /* Predicates: c has the negations of a (1) and b (2). */
      case OP_MOV_P: { uint8_t *d = RP(o->d); const uint8_t *a = RP(o->a); uint8_t n = o->c & 1;
        LANES(d[i] = a[i] ^ n); break; }
      case OP_AND_P: { uint8_t *d = RP(o->d); const uint8_t *a = RP(o->a), *b = RP(o->b);
        uint8_t n = o->c & 1, k = o->c >> 1; LANES(d[i] = (a[i] ^ n) & (b[i] ^ k)); break; }
      case OP_OR_P: { uint8_t *d = RP(o->d); const uint8_t *a = RP(o->a), *b = RP(o->b);
        uint8_t n = o->c & 1, k = o->c >> 1; LANES(d[i] = (a[i] ^ n) | (b[i] ^ k)); break; }
      case OP_XOR_P: { uint8_t *d = RP(o->d); const uint8_t *a = RP(o->a), *b = RP(o->b);
        uint8_t n = o->c & 1, k = o->c >> 1; LANES(d[i] = (a[i] ^ n) ^ (b[i] ^ k)); break; }
      /* Pairs. */
      case OP_PACK_32: { uint32_t *d = R32(o->d); const uint16_t *a = R16(o->a), *b = R16(o->b);
        LANES(d[i] = (uint32_t)b[i] << 16 | a[i]); break; }
      case OP_PACK_64: { uint64_t *d = R64(o->d); const uint32_t *a = R32(o->a), *b = R32(o->b);
        LANES(d[i] = (uint64_t)b[i] << 32 | a[i]); break; }
      case OP_UNPACK_32: { uint16_t *d = R16(o->d), *e = R16(o->b); const uint32_t *a = R32(o->a);
        LANES(uint32_t x = a[i]; d[i] = (uint16_t)x; e[i] = (uint16_t)(x >> 16)); break; }
      case OP_UNPACK_64: { uint32_t *d = R32(o->d), *e = R32(o->b); const uint64_t *a = R64(o->a);
        LANES(uint64_t x = a[i]; d[i] = (uint32_t)x; e[i] = (uint32_t)(x >> 32)); break; }
      case OP_CVT_INT: convert_integers(registers, o, m); break;
      /* Floats. */
      FLOATS(OP_ADD_F32, a[i] + b[i])
      FLOATS(OP_SUB_F32, a[i] - b[i])
      FLOATS(OP_MUL_F32, a[i] * b[i])
      FLOATS(OP_FMA_F32, fmaf(a[i], b[i], c[i]))
      FLOATS(OP_NEG_F32, a[i] == a[i] ? float_of(bits_of(a[i]) ^ 0x80000000) : a[i])
      FLOATS(OP_ABS_F32, a[i] == a[i] ? float_of(bits_of(a[i]) & 0x7fffffff) : a[i])
      /* Zeros have an order by their sign; a NaN makes the result one, so that NumPy decides. */
      FLOATS(OP_MIN_F32, a[i] != a[i] || b[i] != b[i] ? NAN : a[i] < b[i] || (a[i] == b[i] && signbit(a[i])) ? a[i] : b[i])
      FLOATS(OP_MAX_F32, a[i] != a[i] || b[i] != b[i] ? NAN : a[i] > b[i] || (a[i] == b[i] && !signbit(a[i])) ? a[i] : b[i])
      FLOATS(OP_CVT_F32_S32, (float)((const int32_t *)a)[i])
      FLOATS(OP_CVT_F32_U32, (float)((const uint32_t *)a)[i])
      FLOATS(OP_CVT_F32_F16, from_half(R16(o->a)[i]))
      FLOATS(OP_CVT_F32_BF16, float_of((uint32_t)R16(o->a)[i] << 16))
      ROUNDED(OP_DIV_F32, x / v)
      ROUNDED(OP_RCP_F32, 1.0 / x)
      ROUNDED(OP_SQRT_F32, sqrt(x))
      ROUNDED(OP_RSQRT_F32, 1.0 / sqrt(x))
      APPROXIMATE(OP_EX2_F32, exp2(x))
      APPROXIMATE(OP_LG2_F32, log2(x))
      APPROXIMATE(OP_SIN_F32, sin(x))
      APPROXIMATE(OP_COS_F32, cos(x))
      APPROXIMATE(OP_TANH_F32, tanh(x))
      COMPARE(OP_EQ_F32, R32, float, x == y) COMPARE(OP_NE_F32, R32, float, x < y || x > y)
      COMPARE(OP_LT_F32, R32, float, x < y) COMPARE(OP_LE_F32, R32, float, x <= y)
      COMPARE(OP_GT_F32, R32, float, x > y) COMPARE(OP_GE_F32, R32, float, x >= y)
      COMPARE(OP_EQU_F32, R32, float, !(x < y || x > y)) COMPARE(OP_NEU_F32, R32, float, x != y)
      COMPARE(OP_LTU_F32, R32, float, !(x >= y)) COMPARE(OP_LEU_F32, R32, float, !(x > y))
      COMPARE(OP_GTU_F32, R32, float, !(x <= y)) COMPARE(OP_GEU_F32, R32, float, !(x < y))
      COMPARE(OP_NAN_F32, R32, float, x != x || y != y) COMPARE(OP_NUM_F32, R32, float, x == x && y == y)
      case OP_CVT_F16: case OP_CVT_BF16: { const float *a = (const float *)R32(o->a); uint16_t *d = R16(o->d);
        int bad = 0, half = o->code == OP_CVT_F16;
        for (int i = 0; i < 32; i++) bad |= (!m || m[i]) && a[i] != a[i];
        if (bad) return at;
        LANES(d[i] = half ? half_of(a[i]) : bfloat_of(a[i])); break; }
      case OP_CVT_F16X2: case OP_CVT_BF16X2: { const float *a = (const float *)R32(o->a), *b = (const float *)R32(o->b);
        uint32_t *d = R32(o->d); int bad = 0, half = o->code == OP_CVT_F16X2;
        for (int i = 0; i < 32; i++) bad |= (!m || m[i]) && (a[i] != a[i] || b[i] != b[i]);
        if (bad) return at;
        LANES(d[i] = half ? (uint32_t)half_of(a[i]) << 16 | half_of(b[i])
                          : (uint32_t)bfloat_of(a[i]) << 16 | bfloat_of(b[i])); break; }
      /* Integers clamp, NaN becomes 0; b is the mode. */
      case OP_CVT_S32_F32: { const float *a = (const float *)R32(o->a); uint32_t *d = R32(o->d); int mode = o->b;
        LANES(double x = integral(a[i], mode); d[i] = x != x ? 0 : x <= -2147483648.0 ? 0x80000000
              : x >= 2147483647.0 ? 0x7fffffff : (uint32_t)(int32_t)x); break; }
      case OP_CVT_U32_F32: { const float *a = (const float *)R32(o->a); uint32_t *d = R32(o->d); int mode = o->b;
        LANES(double x = integral(a[i], mode); d[i] = x != x || x <= 0 ? 0 : x >= 4294967295.0 ? 0xffffffff
              : (uint32_t)x); break; }
      /* Parameters: a is their offset. */
      case OP_PARAM_32: { uint32_t x, *d = R32(o->d); memcpy(&x, parameters + o->a, 4); LANES(d[i] = x); break; }
      case OP_PARAM_64: { uint64_t x, *d = R64(o->d); memcpy(&x, parameters + o->a, 8); LANES(d[i] = x); break; }
      default: return at;
    }
  }
  return count;
}
