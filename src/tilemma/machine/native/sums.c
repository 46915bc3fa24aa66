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

static inline int64_t word_of(double x) { int64_t u; memcpy(&u, &x, 8); return u; }
static double double_of(int64_t u) { double x; memcpy(&x, &u, 8); return x; }
static double power(int exponent) { return double_of((int64_t)(exponent + 1023) << 52); }

static inline int exponent_of(double x, int lowest) {
  int biased = (int)(word_of(x) >> 52 & 0x7ff), e = biased - 1023 > lowest ? biased - 1023 : lowest;
  return biased ? e : ZERO;
}

/* Eight columns at once.  Macros, since a function that takes vectors depends on those that the processor has. */
typedef double Doubles __attribute__((vector_size(64), aligned(8)));
typedef int64_t Longs __attribute__((vector_size(64), aligned(8)));
typedef int32_t Ints __attribute__((vector_size(32), aligned(4)));
enum { COLUMNS = 8 };

#define LARGER(X, Y) ({ Ints x_ = X, y_ = Y, more_ = x_ > y_; (x_ & more_) | (y_ & ~more_); })
#define BIASED(X) __builtin_convertvector((Longs)(X) >> 52 & 0x7ff, Ints)
#define POWERS(EXPONENTS) (Doubles)(__builtin_convertvector((EXPONENTS) + 1023, Longs) << 52)
#define TRUNCATED(X) __builtin_convertvector(__builtin_convertvector(X, Ints), Doubles)
#define CHOSEN(WHICH, X, Y) ({ Longs w_ = WHICH; (Doubles)(((Longs)(X) & w_) | ((Longs)(Y) & ~w_)); })
#define WITH_INFINITIES(X, LARGEST) ({                                                                            \
  Doubles y_ = X, infinite_ = (Doubles){} + HUGE_VAL;                                                             \
  CHOSEN(y_ > LARGEST, infinite_, CHOSEN(y_ < -LARGEST, -infinite_, y_)); })

/* The nearest f16, ties to even. */
#define NEAREST_HALF(X) ({                                                                                        \
  Doubles held_ = X;                                                                                              \
  Ints biased_ = BIASED(held_), e_ = LARGER(biased_ - 1023, (Ints){} - 14);                                       \
  Doubles rounded_ = held_ * POWERS(10 - e_) + 6755399441055744.0 - 6755399441055744.0;                           \
  rounded_ = rounded_ * POWERS(e_ - 10) + 0.0;                                                                    \
  CHOSEN(__builtin_convertvector(biased_ == 0x7ff, Longs), held_, WITH_INFINITIES(rounded_, 65504.0)); })

#define CUT_TO(X, KEPT, LOWEST, LARGEST) ({                                                                       \
  Doubles held_ = X;                                                                                              \
  Ints unit_ = LARGER(BIASED(held_) - 1023, (Ints){} + LOWEST) - KEPT;                                            \
  WITH_INFINITIES(TRUNCATED(held_ * POWERS(-unit_)) * POWERS(unit_) + 0.0, LARGEST); })

/* One step for a row of a: products of `count` columns `order[...]` of a with rows of b are added to total[n]. */
WIDEST void sum_step(const Product *p, const double *a, const int *at_a, const double *b, const int *at_b,
                     const int64_t *rows, const int32_t *order, int count, double *total, double biggest, int finite) {
  int fraction = (int)p->fraction, lowest = (int)p->lowest_d;
  for (int64_t j = 0; j < p->n; j += COLUMNS) {
    Doubles held = *(Doubles *)(total + j), left = held - held, plain = held;
    Ints biased = BIASED(held), there = biased != 0;
    Ints largest = (LARGER(biased - 1023, (Ints){} + lowest) & there) | ((Ints){} + ZERO & ~there);
    for (int t = 0; t < count; t++)
      largest = LARGER(largest, *(Ints *)(at_b + rows[order[t]] * p->n + j) + at_a[order[t]]);
    largest = LARGER(largest, (Ints){} + ZERO);
    largest = -LARGER(-largest, (Ints){} - 600);
    Doubles scale = POWERS(fraction - largest), sum = TRUNCATED(held * scale);
    for (int t = 0; t < count; t++)
      sum += TRUNCATED(*(Doubles *)(b + rows[order[t]] * p->n + j) * a[order[t]] * scale);
    sum *= POWERS(largest - fraction);
    sum = p->kept < 0 ? NEAREST_HALF(sum) : CUT_TO(sum, (int)p->kept, lowest, biggest);
    int usual = finite;
    for (int i = 0; i < COLUMNS; i++) usual &= left[i] == 0;
    if (!usual) {
      for (int t = 0; t < count; t++) plain += a[order[t]] * *(Doubles *)(b + rows[order[t]] * p->n + j);
      sum = CHOSEN(plain - plain == 0, sum, plain);
    }
    *(Doubles *)(total + j) = sum;
  }
}

/* Sums apart from what was held are added to that, and rounded. */
WIDEST void add_apart(const Product *p, const double *apart, double *held) {
  for (int64_t j = 0; j < p->n && p->half; j += COLUMNS)
    *(Doubles *)(held + j) = NEAREST_HALF(*(Doubles *)(apart + j) + *(Doubles *)(held + j));
  for (int64_t j = 0; j < p->n && !p->half; j++) held[j] = (double)(float)(apart[j] + held[j]);
}

/* The exponents of ``n`` numbers; whether all of these are finite. */
WIDEST int exponents(const double *x, int64_t n, int lowest, int *out) {
  int64_t all = 0;
  for (int64_t i = 0; i < n; i++) {
    int64_t biased = word_of(x[i]) >> 52 & 0x7ff;
    int e = (int)biased - 1023 > lowest ? (int)biased - 1023 : lowest;
    out[i] = biased ? e : ZERO;
    all |= biased == 0x7ff;
  }
  return !all;
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
    int finite = exponents(right, p->height * p->n, (int)p->lowest_b, at_b);
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
      if (p->apart) add_apart(p, total, held);
    }
  }
}
