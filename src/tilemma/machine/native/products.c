/* Products of matrices: operands from registers or shared memory, and sums as in `sums.c`. */

enum { HALF, BFLOAT, TF32, FLOAT, BYTE };
enum { MOST_A = 64 * 64, MOST_B = 64 * 256, MOST_C = 64 * 256 };

/* Places of the elements, `size` bytes each unit: [batch, rows, columns]; `table`: the values of 8-bit types. */
typedef struct { int64_t type, size; const int64_t *at; const double *table; } Operand;
typedef struct { Operand a, b, c, d; int64_t count, b_is_turned, a_is_negative, b_is_negative; } Multiply;

static double element(const Operand *x, const uint8_t *base, int64_t at) {
  const uint8_t *from = base + at * x->size;
  uint16_t half;
  uint32_t word;
  switch (x->type) {
    case HALF: memcpy(&half, from, 2); return from_half(half);
    case BFLOAT: memcpy(&half, from, 2); return float_of((uint32_t)half << 16);
    case TF32: memcpy(&word, from, 4); return float_of(word & 0xffffe000);
    case FLOAT: memcpy(&word, from, 4); return float_of(word);
    default: return x->table[*from];
  }
}

/* `count` products one after the other; the places of A and B are counted from `a` and `b`, after `delta_a`
 * and `delta_b` bytes, those of the sums, and of A
 * where `a` is null, from the 32-bit registers.  Without `added` the sums start at zero. */
void multiply_tiles(const Multiply *x, const Product *p, const int32_t *order, double biggest, const uint8_t *a,
                    int64_t delta_a, const uint8_t *b, int64_t delta_b, void **registers, int64_t added) {
  uint8_t *c = registers[1];
  if (!a) a = c;
  static __thread double left[MOST_A], right[MOST_B], total[MOST_C];
  int32_t scratch[64 + MOST_B];
  int64_t of_a = p->m * p->depth, of_b = p->height * p->n, of_c = p->m * p->n;
  for (int64_t one = 0; one < x->count; one++) {
    for (int64_t i = 0; i < of_a; i++) left[i] = element(&x->a, a + delta_a, x->a.at[one * of_a + i]);
    if (x->b_is_turned)
      for (int64_t j = 0; j < p->n; j++)
        for (int64_t k = 0; k < p->height; k++)
          right[k * p->n + j] = element(&x->b, b + delta_b, x->b.at[j * p->height + k]);
    else
      for (int64_t i = 0; i < of_b; i++) right[i] = element(&x->b, b + delta_b, x->b.at[one * of_b + i]);
    if (x->a_is_negative) for (int64_t i = 0; i < of_a; i++) left[i] = -left[i];
    if (x->b_is_negative) for (int64_t i = 0; i < of_b; i++) right[i] = -right[i];
    if (added) for (int64_t i = 0; i < of_c; i++) total[i] = element(&x->c, c, x->c.at[one * of_c + i]);
    else memset(total, 0, of_c * sizeof *total);
    sum_products(p, left, right, total, 0, order, scratch, biggest);
    for (int64_t i = 0; i < of_c; i++) {
      uint8_t *to = c + x->d.at[one * of_c + i] * x->d.size;
      int bad = total[i] != total[i];
      if (x->d.type == HALF) {
        uint16_t half = bad ? 0x7fff : half_of((float)total[i]);
        memcpy(to, &half, 2);
      } else {
        uint32_t word = bad ? 0x7fffffff : bits_of((float)total[i]);
        memcpy(to, &word, 4);
      }
    }
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

/* A copy of `n` elements of `size` bytes to shared memory, with the global address of each, 0 where it has none. */
void move_elements(uint8_t *data, int64_t *origin, const int64_t *to, int64_t n, int64_t size, const uint8_t *words,
                   const int64_t *from) {
  for (int64_t i = 0; i < n; i++) {
    memcpy(data + to[i], words + i * size, size);
    for (int64_t j = 0; j < size; j++) origin[to[i] + j] = from[i] > 0 ? from[i] + j : 0;
  }
}
