/* Sums of products as a tensor core makes them: `isa/sums.py` states the rules, and its NumPy code is the reference.
 *
 * Operands are dense arrays of double, [batch, m, depth] and [batch, height, n], whose values are of the types that
 * `shape` describes.  `columns` [batch, m, depth], or null: the row of b for each column of a.  The result, of doubles,
 * replaces `c` [batch, m, n]; an infinity or a NaN is as IEEE 754 has it, with any payload.
 */

enum { ZERO = -500, MOST_COLUMNS = 256 };

/* `kept`: bits after the point of a sum that is cut, -1 for one of f16, to nearest.  Least exponents of the types. */
typedef struct {
  int64_t batch, m, n, depth, height, terms, fraction, kept, apart, half, lowest_a, lowest_b, lowest_d;
} Product;

static int64_t word_of(double x) { int64_t u; memcpy(&u, &x, 8); return u; }
static double double_of(int64_t u) { double x; memcpy(&x, &u, 8); return x; }
static double power(int exponent) { return double_of((int64_t)(exponent + 1023) << 52); }

static inline int exponent_of(double x, int lowest) {
  int biased = (int)(word_of(x) >> 52 & 0x7ff), e = biased - 1023 > lowest ? biased - 1023 : lowest;
  return biased ? e : ZERO;
}

/* The nearest f16, ties to even. */
static double nearest_half(double x) {
  int biased = (int)(word_of(x) >> 52 & 0x7ff), e = biased - 1023 > -14 ? biased - 1023 : -14;
  if (biased == 0x7ff) return x;
  if (e > 15) return x > 0 ? HUGE_VAL : -HUGE_VAL;
  double shifted = x * power(10 - e), magic = 6755399441055744.0;
  volatile double moved = shifted + magic;
  double y = (moved - magic) * power(e - 10) + 0.0;
  return y > 65504.0 ? HUGE_VAL : y < -65504.0 ? -HUGE_VAL : y;
}

static double cut_to(double x, int kept, int lowest, double largest) {
  int unit = exponent_of(x, lowest);
  if (unit == ZERO) unit = lowest;
  unit -= kept;
  double y = (double)(int32_t)(x * power(-unit)) * power(unit) + 0.0;
  return y > largest ? HUGE_VAL : y < -largest ? -HUGE_VAL : y;
}

/* One step for a row of a: products of `count` columns `order[...]` of a with rows of b, added to total[n].  `n` is a
 * constant where it is small, for the compiler. */
static inline __attribute__((always_inline)) void step_of_n(
    const Product *p, const double *restrict a, const int *restrict at_a, const double *restrict b,
    const int *restrict at_b, const int64_t *restrict rows, const int32_t *restrict order, int count,
    double *restrict total, double biggest, int n, int finite) {
  int fraction = (int)p->fraction;
  int largest[n];
  double scale[n], sum[n], plain[n];
  for (int j = 0; j < n; j++) {
    largest[j] = exponent_of(total[j], (int)p->lowest_d);
    finite &= total[j] - total[j] == 0;
  }
  for (int t = 0; t < count; t++) {
    int x = at_a[order[t]];
    const int *y = at_b + rows[order[t]] * n;
    for (int j = 0; j < n; j++) { int e = x + y[j]; largest[j] = e > largest[j] ? e : largest[j]; }
  }
  for (int j = 0; j < n; j++) {
    int e = largest[j] > ZERO ? largest[j] : ZERO;
    e = e < 600 ? e : 600;
    largest[j] = e;
    scale[j] = double_of((int64_t)(fraction - e + 1023) << 52);
    sum[j] = (double)(int32_t)(total[j] * scale[j]);
  }
  for (int t = 0; t < count; t++) {
    double x = a[order[t]];
    const double *y = b + rows[order[t]] * n;
    for (int j = 0; j < n; j++) sum[j] += (double)(int32_t)(x * y[j] * scale[j]);
  }
  if (!finite) {
    for (int j = 0; j < n; j++) plain[j] = total[j];
    for (int t = 0; t < count; t++)
      for (int j = 0; j < n; j++) plain[j] += a[order[t]] * b[rows[order[t]] * n + j];
  }
  for (int j = 0; j < n; j++) {
    double exact = sum[j] * double_of((int64_t)(largest[j] - fraction + 1023) << 52);
    if (!finite && !(plain[j] - plain[j] == 0)) total[j] = plain[j];
    else if (p->kept < 0) total[j] = nearest_half(exact);
    else total[j] = cut_to(exact, (int)p->kept, (int)p->lowest_d, biggest);
  }
}

WIDEST void sum_step(const Product *p, const double *a, const int *at_a, const double *b, const int *at_b,
                     const int64_t *rows, const int32_t *order, int count, double *total, double biggest, int finite) {
  if (p->n == 8 && count == 16)
    step_of_n(p, a, at_a, b, at_b, rows, order, 16, total, biggest, 8, finite);
  else if (p->n == 8)
    step_of_n(p, a, at_a, b, at_b, rows, order, count, total, biggest, 8, finite);
  else
    step_of_n(p, a, at_a, b, at_b, rows, order, count, total, biggest, (int)p->n, finite);
}

/* `scratch` has room for depth + height * n integers. */
void sum_products(const Product *p, const double *a, const double *b, double *c, const int64_t *columns,
                  const int32_t *order, int32_t *scratch, double biggest) {
  int *at_a = scratch, *at_b = scratch + p->depth;
  int64_t plain_rows[1024];
  double apart[MOST_COLUMNS];
  for (int64_t k = 0; k < p->depth && !columns; k++) plain_rows[k] = k;
  for (int64_t one = 0; one < p->batch; one++) {
    const double *right = b + one * p->height * p->n;
    int finite = 1;
    for (int64_t i = 0; i < p->height * p->n; i++) {
      at_b[i] = exponent_of(right[i], (int)p->lowest_b);
      finite &= right[i] - right[i] == 0;
    }
    for (int64_t i = 0; i < p->m; i++) {
      int64_t row = one * p->m + i;
      const double *left = a + row * p->depth;
      double *held = c + row * p->n, *total = held;
      int all = finite;
      for (int64_t k = 0; k < p->depth; k++) {
        at_a[k] = exponent_of(left[k], (int)p->lowest_a);
        all &= left[k] - left[k] == 0;
      }
      if (p->apart) { memset(apart, 0, sizeof apart); total = apart; }
      const int64_t *rows = columns ? columns + row * p->depth : plain_rows;
      for (int64_t first = 0; first < p->depth; first += p->terms) {
        int count = (int)(p->depth - first < p->terms ? p->depth - first : p->terms);
        sum_step(p, left, at_a, right, at_b, rows, order + first, count, total, biggest, all);
      }
      if (p->apart)
        for (int64_t j = 0; j < p->n; j++) {
          double x = total[j] + held[j];
          held[j] = p->half ? nearest_half(x) : (double)(float)x;
        }
    }
  }
}
