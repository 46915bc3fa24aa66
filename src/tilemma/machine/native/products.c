/* Products of matrices: operands from registers or shared memory, and sums as in `sums.c`. */

enum { HALF, BFLOAT, TF32, FLOAT, BYTE };
enum { MOST_A = 64 * 64, MOST_B = 64 * 256, MOST_C = 64 * 256 };

/* Places of the elements, `size` bytes each unit: [batch, rows, columns]; `table`: the values of 8-bit types. */
typedef struct { int64_t type, size; const int64_t *at; const double *table; } Operand;
typedef struct { Operand a, b, c, d; int64_t count, b_is_turned, a_is_negative, b_is_negative; } Multiply;

/* Elements from place `at` on, as doubles; `negative`: their negatives. */
#define ELEMENTS(T, VALUE) \
  for (int64_t i = 0; i < n; i++) { T word; memcpy(&word, base + at[i] * size, sizeof word); out[i] = VALUE; } break
WIDEST void elements(const Operand *x, const uint8_t *base, const int64_t *at, int64_t n, int64_t negative, double *out) {
  int64_t size = x->size;
  switch (x->type) {
    case HALF: ELEMENTS(uint16_t, from_half(word));
    case BFLOAT: ELEMENTS(uint16_t, float_of((uint32_t)word << 16));
    case TF32: ELEMENTS(uint32_t, float_of(word & 0xffffe000));
    case FLOAT: ELEMENTS(uint32_t, float_of(word));
    default: ELEMENTS(uint8_t, x->table[word]);
  }
  for (int64_t i = 0; i < n && negative; i++) out[i] = -out[i];
}

/* Sums to the places `at`. */
WIDEST void store_sums(const Operand *x, uint8_t *base, const int64_t *at, int64_t n, const double *total) {
  if (x->type == HALF)
    for (int64_t i = 0; i < n; i++)
      ((uint16_t *)base)[at[i]] = total[i] != total[i] ? 0x7fff : half_of((float)total[i]);
  else
    for (int64_t i = 0; i < n; i++)
      ((uint32_t *)base)[at[i]] = total[i] != total[i] ? 0x7fffffff : bits_of((float)total[i]);
}

/* `count` products one after the other; the places of A and B are counted from `a` and `b`, after `delta_a`
 * and `delta_b` bytes, those of the sums, and of A
 * where `a` is null, from the 32-bit registers.  Without `added` the sums start at zero. */
void multiply_tiles(const Multiply *x, const Product *p, const int32_t *order, double biggest, const uint8_t *a,
                    int64_t delta_a, const uint8_t *b, int64_t delta_b, void **registers, int64_t added) {
  uint8_t *c = registers[1];
  if (!a) a = c;
  static __thread double left[MOST_A], right[MOST_B], turned[MOST_B], total[MOST_C];
  int32_t scratch[64 + MOST_B];
  int64_t of_a = p->m * p->depth, of_b = p->height * p->n, of_c = p->m * p->n;
  for (int64_t one = 0; one < x->count; one++) {
    elements(&x->a, a + delta_a, x->a.at + one * of_a, of_a, x->a_is_negative, left);
    if (x->b_is_turned) {
      elements(&x->b, b + delta_b, x->b.at, of_b, x->b_is_negative, turned);
      for (int64_t j = 0; j < p->n; j++)
        for (int64_t k = 0; k < p->height; k++) right[k * p->n + j] = turned[j * p->height + k];
    } else
      elements(&x->b, b + delta_b, x->b.at + one * of_b, of_b, x->b_is_negative, right);
    if (added) elements(&x->c, c, x->c.at + one * of_c, of_c, 0, total);
    else memset(total, 0, of_c * sizeof *total);
    sum_products(p, left, right, total, 0, order, scratch, biggest);
    store_sums(&x->d, c, x->d.at + one * of_c, of_c, total);
  }
}

void multiply_registers(const Multiply *x, const Product *p, const int32_t *order, double biggest, void **registers) {
  multiply_tiles(x, p, order, biggest, registers[1], 0, registers[1], 0, registers, 1);
}

/* What the issuer of an asynchronous operation knows: of each column, the most that a lane has seen and the least of
 * several warps. */
void knowledge_of(const int32_t *table, int64_t capacity, int64_t used, int64_t first, int32_t *least, int64_t merged) {
  int32_t most[used];
  clocks_most(table, capacity, used, 0, first, 32, most);
  if (!merged) memcpy(least, most, used * sizeof *most);
  else for (int64_t j = 0; j < used; j++) if (most[j] < least[j]) least[j] = most[j];
}

/* A read of `n` units of `width` bytes through the async proxy: 1 and entered if all of it is inside, written, and
 * known to the issuer. */
int64_t async_read(Shared *s, const Events *e, const int64_t *units, int64_t delta, int64_t n, int64_t width,
                   const int32_t *fenced, int64_t length, int64_t reader, int64_t event) {
  int32_t *reads = s->reads + reader * s->stride;
  for (int64_t i = 0; i < n; i++) {
    int64_t at = units[i] + delta;
    if (at < s->base || at + width > s->limit) return 0;
    const int32_t *written = s->writer + at;
    int32_t before = 0;
    for (int64_t j = 0; j < width; j++) {
      if (written[j] == 0) return 0;
      if (written[j] == before) continue;
      before = written[j];
      uint32_t number = ((uint32_t)before & 0x3fffffff) >> 5;
      int64_t column = e->column[number] + (before & 31);
      if (column >= length || fenced[column] < e->clock[number]) return 0;
    }
  }
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < width; j++) reads[units[i] + delta + j] = (int32_t)event;
  return 1;
}

/* Whether the origins of a tile are all known, and each is a step of its row plus one of its column: then the first
 * row and the first column are given back. */
int64_t regular_tile(const int64_t *origin, int64_t rows, int64_t columns, int64_t *row, int64_t *column) {
  memcpy(row, origin, columns * sizeof *row);
  for (int64_t i = 0; i < rows; i++, origin += columns) {
    column[i] = origin[0];
    for (int64_t k = 0; k < columns; k++)
      if (origin[k] <= 0 || origin[k] != column[i] + row[k] - row[0]) return 0;
  }
  return 1;
}

/* Whether the origins at ``n`` places are those of ``tile``. */
int64_t same_tile(const int64_t *origin, const int64_t *at, int64_t n, const int64_t *tile) {
  int64_t other = 0;
  for (int64_t i = 0; i < n; i++) other |= origin[at[i]] ^ tile[i];
  return !other;
}

/* A copy of `n` elements of `size` bytes to shared memory, with the global address of each, 0 where it has none. */
void move_elements(uint8_t *data, int64_t *origin, const int64_t *to, int64_t n, int64_t size, const uint8_t *words,
                   const int64_t *from) {
  for (int64_t i = 0; i < n; i++) {
    memcpy(data + to[i], words + i * size, size);
    for (int64_t j = 0; j < size; j++) origin[to[i] + j] = from[i] > 0 ? from[i] + j : 0;
  }
}

/* As `move_elements`, from an array at the global address `base`, whose bytes are at `from`: the element at each of
 * `offsets` after `start`, or `fill` where that is negative. */
void move_box(uint8_t *data, int64_t *origin, const int64_t *to, int64_t n, int64_t size, const uint8_t *from,
              int64_t base, const int64_t *offsets, int64_t start, uint64_t fill) {
  for (int64_t i = 0; i < n; i++) {
    int64_t at = offsets[i] + start, *known = origin + to[i];
    if (offsets[i] < 0) {
      memcpy(data + to[i], &fill, size);
      for (int64_t j = 0; j < size; j++) known[j] = 0;
    } else {
      memcpy(data + to[i], from + at, size);
      for (int64_t j = 0; j < size; j++) known[j] = base + at + j;
    }
  }
}

/* Whether the issuer of a copy, with the clocks `seen` and `fenced`, knows of an access as `async_access.async_write` asks:
 * of a write in the async proxy, of a read by all its lanes, in both proxies. */
static int write_known(const Events *e, int32_t packed, const int32_t *fenced, int64_t length) {
  uint32_t number = ((uint32_t)packed & 0x3fffffff) >> 5;
  int64_t column = e->column[number] + (packed & 31);
  return column < length && fenced[column] >= e->clock[number];
}

static int read_known(const Events *e, int32_t packed, int wgmma, const int32_t *seen, const int32_t *fenced,
                      int64_t length) {
  uint32_t number = ((uint32_t)packed & 0x3fffffff) >> 5;
  int64_t column = e->column[number] + (packed & 31), own = e->alone[number] + (packed & 31);
  int32_t clock = e->clock[number];
  if (column + 4 >= length || own >= length || seen[column] < clock) return 0;
  for (int warp = 1; warp < 5 && wgmma; warp++) if (seen[column + warp] < clock) return 0;
  return wgmma || (seen[own] >= clock && fenced[column] >= clock);
}

/* A write of `n` units of `width` bytes through the async proxy: 1 and entered if all of it is inside, apart from
 * mbarriers, and known to the issuer. */
int64_t async_write(Shared *s, const Events *e, const int64_t *units, int64_t n, int64_t width, const int32_t *seen,
                    const int32_t *fenced, int64_t length, int64_t event) {
  for (int64_t i = 0; i < n; i++) {
    int64_t at = units[i];
    if (at < s->base || at + width > s->limit || (at < s->high && at + width > s->low)) return 0;
    int32_t before = 0;
    for (int64_t j = 0; j < width; j++) {
      int32_t packed = s->writer[at + j];
      if (!packed || packed == before) continue;
      before = packed;
      if (!write_known(e, packed, fenced, length)) return 0;
    }
  }
  for (int64_t k = 0; k < s->readers; k++) {
    const int32_t *reads = s->reads + k * s->stride;
    int32_t before = 0;
    if (!s->last[k]) continue;
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < width; j++) {
        int32_t packed = reads[units[i] + j];
        if (!packed || packed == before) continue;
        before = packed;
        if (!read_known(e, packed, s->wgmma[k] != 0, seen, fenced, length)) return 0;
      }
  }
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < width; j++) s->writer[units[i] + j] = (int32_t)event;
  return 1;
}
