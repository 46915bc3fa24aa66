/* Accesses to memory with the checks that find nothing: bounds, alignment, initialisation, order by the clocks.
 *
 * A function looks first and then writes, so that nothing has changed where it returns SLOW: then the NumPy code in
 * `access.py` and `global_access.py`, which also chooses the report, does the access.  The structures are arrays of
 * 64-bit integers on the Python side (`blocks.py`).
 */

enum { SLOW = -1, NO_SHADOW = -2 };

/* `records.py` says what the fields are that both sides use. */
typedef struct { int32_t *seen; int64_t capacity; int32_t *fenced; int64_t used, *now, *foreign; } Clocks;
typedef struct { int32_t *column, *clock, *alone; int64_t *made, collective, count, capacity; } Events;
/* `low` and `high` enclose the mbarriers in use; the tables of reads have `rooms` rows.  `origin` is null until the first
 * copy has completed; then it is `origins`, or made by Python. */
typedef struct {
  int64_t base, limit; uint8_t *data; int32_t *writer, *reads; int64_t readers, stride, *last, *wgmma, *origin, low, high,
  last_write, last_read, rooms, mbarriers; struct Mbarrier **mbarrier; int64_t *origins;
} Shared;
typedef struct {
  int64_t base, size; uint8_t *data; int64_t writable, holes; int64_t *writer, *reader, *other; int64_t logged;
} Allocation;
typedef struct { int64_t count; Allocation *table; } Memory;
/* Warps that wait at barrier `number` in C: `arrived` of them. */
typedef struct { int64_t first_thread, warps, live_warps, partial, arrived, number; } Cta;
typedef struct {
  void **registers; int64_t first; Clocks *clocks; Events *events; Shared *shared; int64_t reader; Memory *memory;
  int64_t serial; Cta *cta; int64_t floor, known_clock, known_column, copies, fences, in_flight, starved; double priority;
  struct Groups *groups; int64_t gathered; uint8_t live[32]; struct Warpgroup *warpgroup; int64_t touched, fenced_once,
  fence_open, inits, sure, bulk;
} Warp;
/* Bytes a lane; the address: its register's bytes, row and offset; the data registers: their number, bytes of each in
 * memory, whether these have a sign, and for each its bytes and its row.  `approved`: the base of the array whose type
 * has been compared with the registers' last, -1 where they have none. */
typedef struct {
  int64_t width, address_bytes, address_row, offset, count, size, is_signed, bytes[8], rows[8], approved;
} Access;

typedef struct { int n, lane[32]; int64_t address[32]; } Lanes;

static void addresses(const Warp *w, const Access *x, const uint8_t *m, Lanes *l) {
  l->n = 0;
  for (int i = 0; i < 32; i++) {
    if (m && !m[i]) continue;
    int64_t at = x->address_bytes == 4 ? (int64_t)((uint32_t *)w->registers[1])[32 * x->address_row + i]
                                       : ((int64_t *)w->registers[2])[32 * x->address_row + i];
    l->lane[l->n] = i;
    l->address[l->n++] = at + x->offset;
  }
}

/* The bytes of data register `r` that lane `lane` stores. */
static uint64_t stored(const Warp *w, const Access *x, int r, int lane) {
  int64_t at = 32 * x->rows[r] + lane;
  uint64_t value = x->bytes[r] == 2   ? ((uint16_t *)w->registers[0])[at]
                   : x->bytes[r] == 4 ? ((uint32_t *)w->registers[1])[at]
                                      : ((uint64_t *)w->registers[2])[at];
  return x->size < 8 ? value & (((uint64_t)1 << 8 * x->size) - 1) : value;
}

/* Whether lanes that name the same words store the same there. */
static int agreeing(const Warp *w, const Access *x, const Lanes *l) {
  int ascending = 1;
  for (int i = 1; i < l->n; i++) ascending &= l->address[i] > l->address[i - 1];
  if (ascending) return 1;
  for (int i = 1; i < l->n; i++)
    for (int j = 0; j < i; j++) {
      if (l->address[i] != l->address[j]) continue;
      for (int r = 0; r < x->count; r++)
        if (stored(w, x, r, l->lane[i]) != stored(w, x, r, l->lane[j])) return 0;
    }
  return 1;
}

/* Whether thread `row` has seen a packed event. */
static int known(const Clocks *c, const Events *e, int64_t row, uint32_t packed) {
  uint32_t n = (packed & 0x3fffffff) >> 5;
  return c->seen[row * c->capacity + e->column[n] + (packed & 31)] >= e->clock[n];
}

static int aligned_inside(const Lanes *l, const Shared *s, int64_t width) {
  int64_t all = 0, low = l->address[0], high = low;
  for (int i = 0; i < l->n; i++) {
    int64_t a = l->address[i];
    all |= a;
    if (a < low) low = a;
    if (a > high) high = a;
  }
  return !(all & (width - 1)) && low >= s->base && high + width <= s->limit;
}

/* Whether a word of some lane may lie in an mbarrier in use. */
static int near_mbarriers(const Lanes *l, const Shared *s, int64_t width) {
  for (int i = 0; i < l->n; i++)
    if (l->address[i] < s->high && l->address[i] + width > s->low) return 1;
  return 0;
}

/* The last writes of the words: all there (if `initialised`), all known to their lanes. */
static int writes_known(const Warp *w, const Lanes *l, int64_t width, int64_t floor, int initialised) {
  const Shared *s = w->shared;
  int over = 0;
  for (int i = 0; i < l->n; i++) {
    const int32_t *e = s->writer + l->address[i];
    int32_t before = 0;
    for (int j = 0; j < width; j++) {
      if (e[j] == 0 && initialised) return 0;
      if (e[j] <= floor || e[j] == before) continue;
      before = e[j];
      over = 1;
      if (!known(w->clocks, w->events, w->first + l->lane[i], (uint32_t)before)) return 0;
    }
  }
  return !(over && near_mbarriers(l, s, width));
}

/* The last reads of the words by all readers are known to their lanes. */
static int reads_known(const Warp *w, const Lanes *l, int64_t width, int64_t floor) {
  const Shared *s = w->shared;
  const Events *v = w->events;
  for (int64_t k = 0; k < s->readers; k++) {
    if (s->last[k] <= floor) continue;
    for (int i = 0; i < l->n; i++) {
      const int32_t *e = s->reads + k * s->stride + l->address[i];
      int64_t row = w->first + l->lane[i];
      int32_t before = 0;
      for (int j = 0; j < width; j++) {
        if (e[j] <= floor || e[j] == before) continue;
        before = e[j];
        if (!known(w->clocks, v, row, (uint32_t)before)) return 0;
        uint32_t n = ((uint32_t)before & 0x3fffffff) >> 5, lane = before & 31;
        const int32_t *seen = w->clocks->seen + row * w->clocks->capacity;
        if (s->wgmma[k]) {
          for (int warp = 1; warp < 5; warp++)
            if (seen[v->column[n] + lane + warp] < v->clock[n]) return 0;
        } else if (v->collective && v->alone[n] != v->column[n]) {
          int64_t own = v->alone[n] + lane;
          if (own / 32 * 32 != w->first && seen[own] < v->clock[n]) return 0;
        }
      }
    }
  }
  return 1;
}

/* Passes beyond the least: `performance.bank_conflicts`. */
static int64_t bank_conflicts(const Lanes *l, int64_t width) {
  int per = width <= 4 ? 32 : (int)(128 / width), words = width < 4 ? 1 : (int)(width / 4), extra = 0;
  for (int start = 0; start < l->n; start += per) {
    int64_t word[32];
    int next[32], head[32], count = 0, most = 0, passes[32] = {0};
    for (int b = 0; b < 32; b++) head[b] = -1;
    for (int i = start; i < l->n && i < start + per; i++)
      for (int j = 0; j < words; j++) {
        int64_t x = (l->address[i] >> 2) + j;
        int bank = (int)(x & 31), at = head[bank];
        while (at >= 0 && word[at] != x) at = next[at];
        if (at >= 0) continue;
        word[count] = x; next[count] = head[bank]; head[bank] = count++;
        if (++passes[bank] > most) most = passes[bank];
      }
    extra += most - 1;
  }
  return extra;
}

/* Sectors beyond the least: `performance.surplus_sectors`. */
static int64_t surplus_sectors(const Lanes *l, int64_t width) {
  int64_t sector[64];
  int sectors = 0, unique = 0;
  for (int i = 0; i < l->n; i++) {
    int repeated = 0;
    for (int j = i - 1; j >= 0 && !repeated; j--) repeated = l->address[j] == l->address[i];
    if (repeated) continue;
    unique++;
    for (int end = 0; end < 2; end++) {
      int64_t x = (l->address[i] + (end ? width - 1 : 0)) >> 5;
      int there = 0;
      for (int j = sectors - 1; j >= 0 && !there; j--) there = sector[j] == x;
      if (!there) sector[sectors++] = x;
    }
  }
  return sectors - (unique * width + 31) / 32;
}

static void to_registers(const Warp *w, const Access *x, const Lanes *l, uint8_t *const *from) {
  for (int r = 0; r < x->count; r++)
    for (int i = 0; i < l->n; i++) {
      const uint8_t *p = from[i] + r * x->size;
      uint64_t value = 0;
      memcpy(&value, p, x->size);
      if (x->is_signed) value = (uint64_t)as_type(value, 16 + (int)x->size);
      int64_t at = 32 * x->rows[r] + l->lane[i];
      if (x->bytes[r] == 2) ((uint16_t *)w->registers[0])[at] = (uint16_t)value;
      else if (x->bytes[r] == 4) ((uint32_t *)w->registers[1])[at] = (uint32_t)value;
      else ((uint64_t *)w->registers[2])[at] = value;
    }
}

static void from_registers(const Warp *w, const Access *x, const Lanes *l, uint8_t *const *to) {
  for (int r = 0; r < x->count; r++)
    for (int i = 0; i < l->n; i++) {
      uint64_t value = stored(w, x, r, l->lane[i]);
      memcpy(to[i] + r * x->size, &value, x->size);
    }
}

/* Load from the CTA's own shared memory; `event` is the number that the access gets.  The surplus passes, or SLOW. */
int64_t shared_load(const Warp *w, const Access *x, int64_t floor, int64_t event, const uint8_t *m) {
  Lanes l;
  Shared *s = w->shared;
  addresses(w, x, m, &l);
  if (!l.n || !aligned_inside(&l, s, x->width) || !writes_known(w, &l, x->width, floor, 1)) return SLOW;
  uint8_t *from[32];
  int32_t *reads = s->reads + w->reader * s->stride;
  for (int i = 0; i < l.n; i++) {
    from[i] = s->data + l.address[i];
    for (int j = 0; j < x->width; j++) reads[l.address[i] + j] = (int32_t)(event + l.lane[i]);
  }
  if (s->last[w->reader] < event + 31) s->last[w->reader] = event + 31;
  to_registers(w, x, &l, from);
  return bank_conflicts(&l, x->width);
}

/* Store to the CTA's own shared memory. */
int64_t shared_store(const Warp *w, const Access *x, int64_t floor, int64_t event, const uint8_t *m) {
  Lanes l;
  Shared *s = w->shared;
  addresses(w, x, m, &l);
  if (!l.n || !aligned_inside(&l, s, x->width) || !agreeing(w, x, &l)) return SLOW;
  if (!writes_known(w, &l, x->width, floor, 0) || !reads_known(w, &l, x->width, floor)) return SLOW;
  uint8_t *to[32];
  for (int i = 0; i < l.n; i++) {
    to[i] = s->data + l.address[i];
    for (int j = 0; j < x->width; j++) s->writer[l.address[i] + j] = (int32_t)(event + l.lane[i]);
    if (s->origin) memset(s->origin + l.address[i], 0, 8 * x->width);
  }
  from_registers(w, x, &l, to);
  return bank_conflicts(&l, x->width);
}

/* All lanes of a warp with an address each. */
static Lanes all_lanes(const int64_t *address) {
  Lanes l = {32};
  for (int i = 0; i < 32; i++) { l.lane[i] = i; l.address[i] = address[i]; }
  return l;
}

/* `n` loads of all lanes from the CTA's own shared memory, to `words` [32][n]; `event` is the number of the first.  How
 * many have been made. */
int64_t shared_gather(const Warp *w, const int64_t *address, int64_t n, int64_t width, int64_t floor, int64_t event,
                      uint8_t *words) {
  Shared *s = w->shared;
  int32_t *reads = s->reads + w->reader * s->stride;
  for (int64_t k = 0; k < n; k++, event += 32) {
    Lanes l = all_lanes(address + 32 * k);
    if (!aligned_inside(&l, s, width) || !writes_known(w, &l, width, floor, 1)) return k;
    for (int i = 0; i < 32; i++) {
      memcpy(words + (i * n + k) * width, s->data + l.address[i], width);
      for (int j = 0; j < width; j++) reads[l.address[i] + j] = (int32_t)(event + i);
    }
    if (s->last[w->reader] < event + 31) s->last[w->reader] = event + 31;
  }
  return n;
}

/* The allocation that holds the words of all lanes, aligned; 0 where there is none. */
static Allocation *find(const Memory *memory, Lanes *l, int64_t width) {
  int64_t low = 0, high = memory->count;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (memory->table[middle].base <= l->address[0]) low = middle + 1; else high = middle;
  }
  if (!low) return 0;
  Allocation *a = memory->table + low - 1;
  for (int i = 0; i < l->n; i++) {
    int64_t at = l->address[i] - a->base;
    if (at < 0 || at + width > a->size || (at | l->address[i]) & (width - 1)) return 0;
  }
  return a;
}

/* Whether all events of a shadow are of the own cluster and known to their lanes. */
static int global_known(const Warp *w, const Lanes *l, const Allocation *a, const int64_t *shadow, int64_t width) {
  for (int i = 0; i < l->n; i++) {
    const int64_t *e = shadow + (l->address[i] - a->base);
    int64_t before = 0;
    for (int j = 0; j < width; j++) {
      if (e[j] == before || e[j] == 0) continue;
      before = e[j];
      if (before >> 32 != w->serial) return 0;
      if (!known(w->clocks, w->events, w->first + l->lane[i], (uint32_t)before)) return 0;
    }
  }
  return 1;
}

/* The number of the allocation, the surplus sectors and whether the array is written by the kernel. */
static int64_t found(const Warp *w, const Allocation *a, const Lanes *l, int64_t width) {
  return (int64_t)(a - w->memory->table) << 32 | surplus_sectors(l, width) << 1 | (a->writable != 0);
}

static void record_reads(const Warp *w, const Lanes *l, Allocation *a, int64_t event, int64_t width) {
  for (int i = 0; i < l->n; i++) {
    int64_t *last = a->reader + (l->address[i] - a->base), *other = a->other + (l->address[i] - a->base);
    for (int j = 0; j < width; j++) {
      if (last[j] && last[j] >> 32 != w->serial) other[j] = last[j];
      last[j] = event + l->lane[i];
    }
  }
}

/* Load from one array in global memory; `event` has the cluster above the access's number.  With `approved`, only from
 * an array whose type is known to fit. */
int64_t global_load(const Warp *w, const Access *x, int64_t event, const uint8_t *m, int64_t approved) {
  Lanes l;
  addresses(w, x, m, &l);
  Allocation *a = l.n ? find(w->memory, &l, x->width) : 0;
  if (!a || (approved && x->approved >= 0 && x->approved != a->base)) return SLOW;
  uint8_t *from[32];
  for (int i = 0; i < l.n; i++) from[i] = a->data + (l.address[i] - a->base);
  if (a->writable) {
    if (a->logged || !a->reader) return NO_SHADOW;
    if (a->writer && !global_known(w, &l, a, a->writer, x->width)) return SLOW;
    record_reads(w, &l, a, event, x->width);
  }
  to_registers(w, x, &l, from);
  return found(w, a, &l, x->width);
}

/* Store to one array in global memory. */
int64_t global_store(const Warp *w, const Access *x, int64_t event, const uint8_t *m, int64_t approved) {
  Lanes l;
  addresses(w, x, m, &l);
  Allocation *a = l.n ? find(w->memory, &l, x->width) : 0;
  if (!a || !a->writable || a->holes || !agreeing(w, x, &l)) return SLOW;
  if (approved && x->approved >= 0 && x->approved != a->base) return SLOW;
  if (!a->writer || a->logged) return NO_SHADOW;
  if (!global_known(w, &l, a, a->writer, x->width)) return SLOW;
  if (a->reader && !(global_known(w, &l, a, a->reader, x->width) && global_known(w, &l, a, a->other, x->width)))
    return SLOW;
  uint8_t *to[32];
  for (int i = 0; i < l.n; i++) {
    to[i] = a->data + (l.address[i] - a->base);
    for (int j = 0; j < x->width; j++) a->writer[l.address[i] - a->base + j] = event + l.lane[i];
  }
  from_registers(w, x, &l, to);
  return found(w, a, &l, x->width);
}

/* `n` stores of all lanes to one array in global memory, from `words` [32][n], as in `shared_gather`. */
int64_t global_scatter(const Warp *w, const int64_t *address, int64_t n, int64_t width, int64_t event,
                       const uint8_t *words) {
  for (int64_t k = 0; k < n; k++, event += 32) {
    Lanes l = all_lanes(address + 32 * k);
    for (int i = 1; i < 32; i++)
      if (l.address[i] <= l.address[i - 1]) return k;
    Allocation *a = find(w->memory, &l, width);
    if (!a || !a->writable || a->holes || !a->writer || a->logged) return k;
    if (!global_known(w, &l, a, a->writer, width)) return k;
    if (a->reader && !(global_known(w, &l, a, a->reader, width) && global_known(w, &l, a, a->other, width))) return k;
    for (int i = 0; i < 32; i++) {
      int64_t at = l.address[i] - a->base;
      memcpy(a->data + at, words + (i * n + k) * width, width);
      for (int j = 0; j < width; j++) a->writer[at + j] = event + i;
    }
  }
  return n;
}

/* The numbers of the events at some words of the shadows, each once: first those of the last reads, of which there are
 * `numbers[0]`, then those of the last writes and of reads of other clusters.  How many, or -1 where there are more than
 * `room`, or a word is not aligned or not in the array. */
int64_t event_numbers(const Allocation *a, const int64_t *address, int64_t n, int64_t width, int64_t *numbers,
                      int64_t room) {
  const int64_t *shadows[] = {a->reader, a->writer, a->other};
  int64_t count = 1, before = 0;
  for (int64_t i = 0; i < n; i++) {
    int64_t at = address[i] - a->base;
    if (at < 0 || at + width > a->size || (at & (width - 1))) return -1;
  }
  for (int s = 0; s < 3; s++) {
    for (int64_t i = 0; i < n * width; i++) {
      int64_t number = shadows[s][address[i / width] - a->base + i % width] >> 5, at = 1;
      if (!number || number == before) continue;
      before = number;
      while (at < count && numbers[at] != number) at++;
      if (at < count) continue;
      if (count == room) return -1;
      numbers[count++] = number;
    }
    if (!s) { numbers[0] = count - 1; before = 0; }
  }
  return count - 1;
}

/* Enter the reads and writes of an atomic operation by `lanes`, and its values. */
void atomic_store(const Allocation *a, const int64_t *address, int64_t n, int64_t width, const int64_t *lanes,
                  int64_t read, int64_t written, const uint8_t *values) {
  for (int64_t i = 0; i < n; i++) {
    int64_t at = address[i] - a->base;
    memcpy(a->data + at, values + i * width, width);
    for (int64_t j = 0; j < width; j++) {
      a->reader[at + j] = read + lanes[i];
      a->writer[at + j] = written + lanes[i];
    }
  }
}

/* A cp.async: lanes, places in shared memory, bytes to copy (0: zeros) and their global addresses.  `event` is that of
 * the copies, where a frame has issued them. */
typedef struct { int64_t n, width, lane[32], to[32]; uint8_t *from[32]; int64_t origin[32], event; } Copy;
static const int64_t NOTHING_READ = (int64_t)1 << 62;

/* Issue a cp.async of whole words or zeros, whose reads and writes get the number `event`.  The array that is read is in
 * the result as in `global_load`, or -1. */
int64_t copy_issue(const Warp *w, const Access *to, const Access *from, int64_t sizes, int64_t floor, int64_t event,
                   const uint8_t *m, Copy *out, int64_t *passes) {
  Lanes l, source, reads;
  Shared *s = w->shared;
  int64_t width = to->width;
  addresses(w, to, m, &l);
  addresses(w, from, m, &source);
  if (!l.n || !aligned_inside(&l, s, width)) return SLOW;
  reads.n = 0;
  out->n = l.n; out->width = width;
  for (int i = 0; i < l.n; i++) {
    int64_t size = sizes < 0 ? width : (int64_t)((uint32_t *)w->registers[1])[32 * sizes + l.lane[i]];
    if (size != 0 && size != width) return SLOW;
    out->lane[i] = l.lane[i];
    out->to[i] = l.address[i];
    out->from[i] = 0;
    out->origin[i] = size ? source.address[i] : 0;
    if (size) { reads.lane[reads.n] = l.lane[i]; reads.address[reads.n++] = source.address[i]; }
  }
  Allocation *a = reads.n ? find(w->memory, &reads, width) : 0;
  if (reads.n && !a) return SLOW;
  if (a && a->writable) {
    if (a->logged || !a->reader) return NO_SHADOW;
    if (a->writer && !global_known(w, &reads, a, a->writer, width)) return SLOW;
  }
  if (!writes_known(w, &l, width, floor, 0) || !reads_known(w, &l, width, floor)) return SLOW;
  if (a && a->writable) record_reads(w, &reads, a, w->serial << 32 | event, width);
  for (int i = 0; i < l.n; i++) {
    if (out->origin[i]) out->from[i] = a->data + (out->origin[i] - a->base);
    for (int j = 0; j < width; j++) s->writer[l.address[i] + j] = (int32_t)(event + l.lane[i]);
  }
  *passes = bank_conflicts(&l, width);
  return a ? found(w, a, &reads, width) : NOTHING_READ;
}

/* Complete a cp.async. */
void copy_complete(const Shared *s, const Copy *c) {
  for (int i = 0; i < c->n; i++) {
    int64_t *origin = s->origin + c->to[i];
    if (c->from[i]) memcpy(s->data + c->to[i], c->from[i], c->width);
    else memset(s->data + c->to[i], 0, c->width);
    for (int j = 0; j < c->width; j++) origin[j] = c->origin[i] ? c->origin[i] + j : 0;
  }
}

/* ldmatrix: `halves` says, for each register, lane and half, which 16 bits of the rows it gets; `origins` receives
 * their global addresses. */
int64_t matrix_load(const Warp *w, const Access *x, int64_t floor, int64_t event, const uint8_t *m,
                    const int64_t *halves, int64_t *origins) {
  Lanes l;
  Shared *s = w->shared;
  addresses(w, x, m, &l);
  if (!l.n || !aligned_inside(&l, s, 16) || !writes_known(w, &l, 16, floor, 1)) return SLOW;
  int32_t *reads = s->reads + w->reader * s->stride;
  for (int i = 0; i < l.n; i++)
    for (int j = 0; j < 16; j++) reads[l.address[i] + j] = (int32_t)(event + l.lane[i]);
  if (s->last[w->reader] < event + 31) s->last[w->reader] = event + 31;
  for (int r = 0; r < x->count; r++)
    for (int i = 0; i < 64; i++) {
      int64_t at = halves[64 * r + i], place = l.address[at >> 3] + 2 * (at & 7);
      memcpy((uint16_t *)((uint32_t *)w->registers[1] + 32 * x->rows[r]) + i, s->data + place, 2);
      if (s->origin) origins[64 * r + i] = s->origin[place];
    }
  return bank_conflicts(&l, 16);
}

/* stmatrix: `halves` says, for each register, lane and half, which 16 bits of the rows it gives. */
int64_t matrix_store(const Warp *w, const Access *x, int64_t floor, int64_t event, const uint8_t *m,
                     const int64_t *halves) {
  Lanes l;
  Shared *s = w->shared;
  addresses(w, x, m, &l);
  if (!l.n || !aligned_inside(&l, s, 16)) return SLOW;
  for (int i = 1; i < l.n; i++)
    for (int j = 0; j < i; j++) if (l.address[i] == l.address[j]) return SLOW;
  if (!writes_known(w, &l, 16, floor, 0) || !reads_known(w, &l, 16, floor)) return SLOW;
  for (int i = 0; i < l.n; i++) {
    for (int j = 0; j < 16; j++) s->writer[l.address[i] + j] = (int32_t)(event + l.lane[i]);
    if (s->origin) memset(s->origin + l.address[i], 0, 8 * 16);
  }
  for (int r = 0; r < x->count; r++)
    for (int i = 0; i < 64; i++) {
      int64_t at = halves[64 * r + i];
      memcpy(s->data + l.address[at >> 3] + 2 * (at & 7), (uint16_t *)((uint32_t *)w->registers[1] + 32 * x->rows[r]) + i,
             2);
    }
  return bank_conflicts(&l, 16);
}
