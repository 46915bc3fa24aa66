/* The steps that a frame executes: registers, plain accesses, copies, products and barriers of one warp.
 *
 * A function gives 0 where Python is to execute the step; nothing has changed then.
 */

enum {
  OTHER, SEQUENCE, BRANCH, SHARED_LOAD, SHARED_STORE, GLOBAL_LOAD, GLOBAL_STORE, MATRIX_LOAD, EXCHANGE, COPY, BARRIER,
  WARP_BARRIER, COMMIT, AWAIT, MULTIPLY, LEAVE, WGMMA_FENCE, WGMMA_ISSUE, WGMMA_COMMIT, WGMMA_AWAIT, PROXY_FENCE, NOTHING,
  ARRIVE, WAIT, MATRIX_STORE, CLOCK, ACTIVE, FRAGMENT, BULK_AWAIT
};
/* How a call ends: at another step; with the budget spent; within a sequence; with tables full; at a barrier where the
 * frame now waits; where Python is to complete an operation, let a wait time out, or look itself.  GONE: the frame has
 * met others, or waits for the sides of a branch. */
enum { STOPPED, SPENT, PARTLY, FULL, PARKED, COMPLETE, TIMED_OUT, STARVED, IDLE, AGAIN, GONE };
enum { LATE, RANDOM, EARLY };
#define RELIEF (1.0 / 256)
enum { MOST_ORIGINS = 64, MOST_COPIES = 64, MOST_LOADS = 64, MOST_TOUCHES = 256, MOST_RECORDS = 64 };
/* The addresses of a load or store whose origins Python follows, -1 for lanes that do not execute it. */
typedef struct { int64_t where, address[32]; } Followed;

/* `halves` of a plain access: the origins of what it moves are followed; `stored`: some such stores were made.
 * A sequence has in `lanes` whether there are checks around it (1) that end origins (2), in `halves` whether it touches registers of wgmma.
 * `next`: the step after a sequence, the target of a branch, or whether an access uses registers of wgmma.  `data`: the
 * operations, the `Access`, the `Transfer` or the `Products`; `count`: of operations, the number of a barrier, the groups that a wait
 * leaves, where the sides of a branch meet, whether a cluster waits for warps that leave, or where the time or the active lanes go.  A matrix load has the lanes that give addresses and the map of `matrix_load`. */
typedef struct { int64_t kind, next, guard, count; void *data; const uint8_t *lanes; const int64_t *halves; } Step;

/* Lanes of a warp that run together.  `index`: that of a frame of the same warp among those given for the call;
 * `listed`: it is this one.  `fresh`: made in this call; `changed`: its lanes or its place are others now;
 * `late`: its wait has timed out. */
typedef struct Frame {
  const Warp *warp; int64_t reconverge, lanes, whole, index; uint8_t mask[32]; struct Frame *parent; int64_t children, pc,
  listed, fresh, changed, late;
} Frame;
/* `name`: how Python knows the frame after a call. */
typedef struct { Frame *frame; int64_t name; } Entry;

/* See `records.py`.  `loads` and `touches` list the frame and the step of each matrix load and access to registers of
 * wgmma. */
typedef struct {
  const Step *steps; uint8_t *covered; int64_t *counted, *surplus; uint32_t *random; int64_t by_priority; double rate,
  eagerness; int64_t schedule; Queue *queue; const uint8_t *looked; Entry *entries; int64_t ready, parked, skip, limit,
  until, timeouts, starving, polling, starved_at; int64_t *origins; Copy *copies; Frame *pool; int64_t rooms; Frame
  *resumed; int64_t
  executed, progress, chosen, pc, budget, done, loaded, registers, issued, at, *loads, touched, *touches, made, moved;
  Frame *spare, **list, **all; double impatience; Followed *records;
  int64_t recorded, stored;
} Grid;

/* A cp.async; `sizes` as in `copy_issue`. */
typedef struct { const Access *to, *from; int64_t sizes; } Issue;
/* `count` mma.sync in a row. */
typedef struct { const Multiply *operands; const Product *product; const int32_t *order; double biggest; int64_t count; }
  Products;

/* The generator of Python's `random` (Matsumoto and Nishimura, "Mersenne Twister"): an index, and 624 words. */
static uint32_t random_word(uint32_t *r) {
  uint32_t *state = r + 1;
  if (r[0] >= 624) {
    for (int i = 0; i < 624; i++) {
      uint32_t y = (state[i] & 0x80000000u) | (state[(i + 1) % 624] & 0x7fffffffu);
      state[i] = state[(i + 397) % 624] ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    r[0] = 0;
  }
  uint32_t y = state[r[0]++];
  y ^= y >> 11;
  y ^= y << 7 & 0x9d2c5680u;
  y ^= y << 15 & 0xefc60000u;
  return y ^ y >> 18;
}

/* `random.random()` and `limits.below`. */
double random_unit(uint32_t *r) {
  uint32_t a = random_word(r) >> 5, b = random_word(r) >> 6;
  return (a * 67108864.0 + b) * (1.0 / 9007199254740992.0);
}

int64_t random_below(uint32_t *r, int64_t count) {
  int bits = 64 - __builtin_clzll((uint64_t)count);
  int64_t found;
  do found = random_word(r) >> (32 - bits); while (found >= count);
  return found;
}

/* The warp of ``f`` touches registers of wgmma; 0 where the list is full. */
static int touching(Grid *g, const Frame *f, int64_t pc) {
  int64_t entry = f->index << 32 | pc, last = g->touched - 1;
  for (int64_t i = last; i >= 0 && i > last - 8; i--)
    if (g->touches[i] == entry) {
      memmove(g->touches + i, g->touches + i + 1, (last - i) * sizeof entry);
      g->touched = last;
      break;
    }
  if (g->touched == MOST_TOUCHES) return 0;
  g->touches[g->touched++] = entry;
  return 1;
}

/* Executions, surplus passes or sectors and the worst of them, for each step. */
static void note(int64_t *counted, int64_t pc, int64_t extra) {
  int64_t *n = counted + 3 * pc;
  n[0]++;
  n[1] += extra;
  if (extra > n[2]) n[2] = extra;
}

/* `copied`: the read of a copy. */
static void event_made(const Warp *w, int64_t pc, int64_t column, int64_t clock, int64_t alone) {
  Events *e = w->events;
  e->column[e->count] = (int32_t)column;
  e->clock[e->count] = (int32_t)clock;
  e->alone[e->count] = (int32_t)alone;
  e->made[e->count] = (w->first / 32 + 1) << 32 | pc;
  e->count++;
}

static int64_t now_of(const Warp *w) { return w->clocks->now[w->first / 32]; }

/* shfl.sync: registers as rows; `predicate` is -1 where there is none. */
typedef struct { int64_t mode, to, predicate, value, shift, clamp, members; } Exchange;
enum { UP, DOWN, BUTTERFLY, INDEX };

/* Whether it has been made: by the whole warp, with all lanes in the member mask of each. */
static int exchanged(const Warp *w, const Exchange *x) {
  uint32_t *r32 = w->registers[1], out[32];
  uint8_t *rp = w->registers[3], inside[32];
  const uint32_t *value = R32(x->value), *shift = R32(x->shift), *clamp = R32(x->clamp), *members = R32(x->members);
  for (int i = 0; i < 32; i++)
    if (members[i] != 0xffffffff) return 0;
  for (int i = 0; i < 32; i++) {
    int by = shift[i] & 31, end = clamp[i] & 31, segment = clamp[i] >> 8 & 31, from;
    int highest = (i & segment) | (end & ~segment & 31);
    switch (x->mode) {
      case UP: from = i - by; inside[i] = from >= highest; break;
      case DOWN: from = i + by; inside[i] = from <= highest; break;
      case BUTTERFLY: from = i ^ by; inside[i] = from <= highest; break;
      default: from = (i & segment) | (by & ~segment & 31); inside[i] = from <= highest;
    }
    out[i] = value[inside[i] ? from : i];
  }
  memcpy(R32(x->to), out, sizeof out);
  if (x->predicate >= 0) memcpy(RP(x->predicate), inside, sizeof inside);
  return 1;
}

/* `Clocks.collective`: a lane that executes a collective read knows all of it. */
static void know_collective(const Warp *w, int64_t now) {
  if (w->known_clock == now) return;
  ((Warp *)w)->known_clock = now;
  for (int64_t i = w->first; i < w->first + 32; i++)
    for (int j = 0; j < 32; j++) w->clocks->seen[i * w->clocks->capacity + w->known_column + j] = (int32_t)now;
}

/* Threads from `first` on learn what any of them knows, and their warps' clocks advance. */
static void synchronise(Clocks *c, int64_t first, int64_t threads) {
  int32_t scratch[c->used];
  clocks_join(c->seen, c->capacity, c->used, 0, first, threads, scratch);
  clocks_join(c->fenced, c->capacity, c->used, 0, first, threads, scratch);
  for (int64_t i = first; i < first + threads; i += 32) clocks_tick(c->seen, c->capacity, i, (int32_t)++c->now[i / 32]);
}

/* Whether a warp carries nothing but clocks of its cluster to a barrier. */
static int only_clocks(const Warp *w) { return !w->fences && !w->clocks->foreign[w->first / 32]; }

/* Whether bar.warp.sync has been executed: by the whole warp, each lane with all in its mask, the row `mask`. */
static int warp_synchronised(const Warp *w, int64_t mask) {
  const uint32_t *members = (uint32_t *)w->registers[1] + 32 * mask;
  if (!only_clocks(w)) return 0;
  for (int i = 0; i < 32; i++)
    if (members[i] != 0xffffffff) return 0;
  synchronise(w->clocks, w->first, 32);
  if (w->cta->warps == 1) ((Warp *)w)->floor = (w->events->count << 5) - 1;
  return 1;
}

/* Whether a cp.async has been issued. */
static int copy_made(Grid *g, const Frame *f, int64_t pc, const uint8_t *m) {
  const Warp *w = f->warp;
  const Issue *x = g->steps[pc].data;
  Events *e = w->events;
  int64_t event = e->count << 5 | 1 << 30, passes, never = 0x7fffffff;
  if (!w->groups) return 0;
  Copy *copy = g->copies + g->issued;
  int64_t found = copy_issue(w, x->to, x->from, x->sizes, w->floor, event, m, copy, &passes);
  if (found < 0) return 0;
  if (found != NOTHING_READ) note(g->surplus, pc, (found & 0xffffffff) >> 1);
  note(g->counted, pc, passes);
  copy->event = event;
  if (w->shared->last_write < copy->event + 31) w->shared->last_write = copy->event + 31;
  event_made(w, pc, w->copies, never, w->copies);
  g->issued++;
  return opened(g->queue, w, copy, f->index << 32 | pc);
}

/* Whether the products have been made: by the whole warp, where the origins of operands need no look. */
static int multiplied(const Grid *g, const Warp *w, int64_t pc, const Products *x) {
  for (int64_t i = 0; i < x->count && w->shared->origin; i++)
    if (!g->looked[pc + i]) return 0;
  multiply_registers(x->operands, x->product, x->order, x->biggest, w->registers);
  return 1;
}

/* Whether the warp is a reader of its CTA's shared memory, if need be from now on. */
static int reads_shared(const Grid *g, const Frame *f) {
  Warp *w = (Warp *)f->warp;
  Shared *s = w->shared;
  if (w->reader >= 0) return 1;
  if (s->readers == s->rooms || !has_room(g->queue)) return 0;
  w->reader = s->readers++;
  entered(g->queue, FIRST_READ, f->index);
  return 1;
}

/* What Python needs to know of the origins that an access moves. */
static void record(Grid *g, const Frame *f, int64_t pc, const uint8_t *m) {
  Followed *r = g->records + g->recorded;
  Lanes l;
  addresses(f->warp, g->steps[pc].data, m, &l);
  r->where = f->index << 32 | pc;
  for (int i = 0; i < 32; i++) r->address[i] = -1;
  for (int i = 0; i < l.n; i++) r->address[l.lane[i]] = l.address[i];
}

static int is_followed(const Step *s) { return s->halves && (s->kind == SHARED_STORE || s->kind == GLOBAL_LOAD); }

/* Whether an access has to wait until Python has entered the origins of earlier ones. */
static int must_enter(const Grid *g, const Step *s) {
  if (is_followed(s)) return g->recorded == MOST_RECORDS;
  return g->stored && (s->kind == SHARED_STORE || s->kind == MATRIX_LOAD || s->kind == MATRIX_STORE || s->kind == COPY);
}

/* Time is the number of steps that the grid has taken. */
static void tell_time(const Grid *g, const Warp *w, int64_t to, const uint8_t *m) {
  uint32_t *r32 = w->registers[1], now = (uint32_t)(g->executed + 1);
  uint64_t *r64 = w->registers[2];
  LANES(if (to & 1) R64(to >> 1)[i] = now; else R32(to >> 1)[i] = now);
}

static void tell_active(const Warp *w, int64_t to, const uint8_t *m) {
  uint32_t *r32 = w->registers[1], bits = 0;
  for (int i = 0; i < 32; i++) bits |= (uint32_t)(m ? m[i] : 1) << i;
  LANES(R32(to)[i] = bits);
}

/* Whether the access has been made. */
static int access_made(Grid *g, const Frame *f, int64_t pc, const uint8_t *m) {
  const Warp *w = f->warp;
  Shared *shared = w->shared;
  const Step *s = g->steps + pc;
  const Access *x = s->data;
  int64_t event = w->events->count << 5, now = now_of(w), extra;
  switch (s->kind) {
    case SHARED_LOAD:
      if (!reads_shared(g, f)) return 0;
      extra = shared_load(w, x, w->floor, event, m);
      if (extra < 0) return 0;
      if (shared->last_read < event + 31) shared->last_read = event + 31;
      break;
    case COPY: return copy_made(g, f, pc, m);
    case SHARED_STORE:
      extra = shared_store(w, x, w->floor, event, m);
      if (extra < 0) return 0;
      if (shared->last_write < event + 31) shared->last_write = event + 31;
      g->progress++;
      break;
    case MATRIX_STORE:
      extra = m ? SLOW : matrix_store(w, x, w->floor, event, s->lanes, s->halves);
      if (extra < 0) return 0;
      if (shared->last_write < event + 31) shared->last_write = event + 31;
      break;
    case MATRIX_LOAD:
      if (w->known_column < 0 || m || !reads_shared(g, f)) return 0;
      extra = matrix_load(w, x, w->floor, event, s->lanes, s->halves, g->origins + 64 * g->registers);
      if (extra < 0) return 0;
      know_collective(w, now);
      if (shared->last_read < event + 31) shared->last_read = event + 31;
      if (shared->origin) {
        g->loads[g->loaded++] = f->index << 32 | pc;
        g->registers += x->count;
      }
      note(g->counted, pc, extra);
      event_made(w, pc, w->known_column, now, w->first);
      w->events->collective = 1;
      return 1;
    default: {
      int64_t found = s->kind == GLOBAL_LOAD ? global_load(w, x, w->serial << 32 | event, m, 1)
                                             : global_store(w, x, w->serial << 32 | event, m, 1);
      if (found < 0) return 0;
      note(g->counted, pc, (found & 0xffffffff) >> 1);
      if (s->kind == GLOBAL_STORE) g->progress++;
      if (found & 1) event_made(w, pc, w->first, now, w->first);
      return 1;
    }
  }
  note(g->counted, pc, extra);
  event_made(w, pc, w->first, now, w->first);
  return 1;
}

/* Whether a warp may wait in C: all the warps of its CTA are there and take part, and carry nothing but clocks. */
static int may_park(const Frame *f, int64_t number) {
  const Warp *w = f->warp;
  const Cta *c = w->cta;
  return f->whole && !c->partial && c->live_warps == c->warps && (!c->arrived || c->number == number) && only_clocks(w);
}

/* Go on behind ``count`` visible steps; whether the budget is spent. */
static int spent(Grid *g, int64_t count) {
  memset(g->covered + g->pc, 1, count);
  g->executed += count;
  g->pc += count;
  g->budget -= count;
  return g->budget <= 0;
}
