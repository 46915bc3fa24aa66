/* Runs warps: chooses the next frame as `Machine.step` does, and executes registers, plain accesses, branches of all
 * lanes and barriers of the CTA, until something else comes.
 *
 * What `kind` says of a step is what `Machine.execute` does with it; the step at which a frame stops has not begun,
 * except where a sequence on registers stopped at a NaN.
 */

enum {
  OTHER, SEQUENCE, BRANCH, SHARED_LOAD, SHARED_STORE, GLOBAL_LOAD, GLOBAL_STORE, MATRIX_LOAD, EXCHANGE, COPY, BARRIER,
  WARP_BARRIER, COMMIT, AWAIT, MULTIPLY
};
/* How a call ends: at another step; with the budget spent; within a sequence; with tables full; at a barrier where the
 * frame now waits; where Python is to complete an operation, let a wait time out, or look itself. */
enum { STOPPED, SPENT, PARTLY, FULL, PARKED, COMPLETE, TIMED_OUT, STARVED, IDLE, AGAIN };
enum { LATE, RANDOM, EARLY };
#define RELIEF (1.0 / 256)
enum { MOST_ORIGINS = 64, MOST_COPIES = 64, MOST_LOADS = 64, MOST_TOUCHES = 256 };

/* `next`: the step after a sequence, the target of a branch, or whether an access uses registers of wgmma.  `data`: the
 * operations, the `Access` or the `Products`; `count`: of operations, the number of a barrier, or the groups that a wait
 * leaves.  A matrix load has the lanes that give addresses and the map of `matrix_load`. */
typedef struct { int64_t kind, next, guard, count; void *data; const uint8_t *lanes; const int64_t *halves; } Step;

/* Lanes of a warp that run together; `mask` counts where they are not all 32. */
typedef struct { const Warp *warp; int64_t reconverge, lanes, whole, index; uint8_t mask[32]; } Frame;
typedef struct { Frame *frame; int64_t pc; } Entry;

/* See `records.py`.  `loads` and `touches` list the frame and the step of each matrix load and access to registers of
 * wgmma. */
typedef struct {
  const Step *steps; uint8_t *covered; int64_t *counted, *surplus; uint32_t *random; int64_t by_priority; double rate,
  eagerness; int64_t schedule; Queue *queue; const uint8_t *looked; Entry *entries; int64_t ready, parked, skip, limit,
  until, timeouts, starving, polling, starved_at; int64_t *origins; Copy *copies; int64_t executed, progress, chosen, pc,
  budget, done, loaded, registers, issued, at, *loads, touched, *touches;
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

/* Executions, surplus passes or sectors and the worst of them, for each step. */
static void note(int64_t *counted, int64_t pc, int64_t extra) {
  int64_t *n = counted + 3 * pc;
  n[0]++;
  n[1] += extra;
  if (extra > n[2]) n[2] = extra;
}

/* `copied`: the read of a copy. */
static void event_made(const Warp *w, int64_t pc, int64_t column, int64_t clock, int64_t alone, int copied) {
  Events *e = w->events;
  e->column[e->count] = (int32_t)column;
  e->clock[e->count] = (int32_t)clock;
  e->alone[e->count] = (int32_t)alone;
  e->made[e->count] = (w->first / 32 + 1) << 33 | pc << 1 | copied;
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
  int64_t event = e->count << 5, passes, never = 0x7fffffff;
  if (!w->groups) return 0;
  Copy *copy = g->copies + g->issued;
  int64_t found = copy_issue(w, x->to, x->from, x->sizes, w->floor, w->serial << 32 | event, event | 1 << 30, m, copy,
                             &passes);
  if (found < 0) return 0;
  if (found != NOTHING_READ) {
    note(g->surplus, pc, (found & 0xffffffff) >> 1);
    if (found & 1) event_made(w, pc, w->first, now_of(w), w->first, 1);
  }
  note(g->counted, pc, passes);
  copy->event = e->count << 5 | 1 << 30;
  if (w->shared->last_write < copy->event + 31) w->shared->last_write = copy->event + 31;
  event_made(w, pc, w->copies, never, w->copies, 0);
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
      event_made(w, pc, w->known_column, now, w->first, 0);
      w->events->collective = 1;
      return 1;
    default: {
      int64_t found = s->kind == GLOBAL_LOAD ? global_load(w, x, w->serial << 32 | event, m, 1)
                                             : global_store(w, x, w->serial << 32 | event, m, 1);
      if (found < 0) return 0;
      note(g->counted, pc, (found & 0xffffffff) >> 1);
      if (s->kind == GLOBAL_STORE) g->progress++;
      if (found & 1) event_made(w, pc, w->first, now, w->first, 0);
      return 1;
    }
  }
  note(g->counted, pc, extra);
  event_made(w, pc, w->first, now, w->first, 0);
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

/* Run the frame `g->chosen` from `g->pc` on, for `g->budget` visible steps. */
int64_t run_frame(Grid *g, const Frame *f) {
  const Warp *w = f->warp;
  const uint8_t *rp = w->registers[3], *mask = f->whole ? 0 : f->mask;
  uint8_t guarded[32];
  for (;;) {
    int64_t pc = g->pc;
    if (pc == f->reconverge || g->executed >= g->limit) return STOPPED;
    const Step *s = g->steps + pc;
    if (s->kind == OTHER) return STOPPED;
    if (s->kind == SEQUENCE) {
      g->covered[pc] = 1;
      g->done = run_lanes(w->registers, s->data, (int)s->count, mask);
      if (g->done != s->count) return PARTLY;
      g->executed += s->count;
      g->pc = s->next;
      continue;
    }
    const uint8_t *m = mask;
    if (s->guard >= 0) {
      const uint8_t *p = RP(s->guard >> 1);
      uint8_t negated = s->guard & 1;
      int n = 0;
      for (int i = 0; i < 32; i++) n += guarded[i] = (p[i] ^ negated) & (mask ? mask[i] : 1);
      if (s->kind == BRANCH) {
        if (n && n != f->lanes) return STOPPED;
        g->covered[pc] = 1;
        g->executed++;
        g->pc = n ? s->next : pc + 1;
        continue;
      }
      if (!n) { g->executed++; g->pc++; continue; }
      m = n == 32 ? 0 : guarded;
    }
    if (s->kind == BRANCH) {
      g->covered[pc] = 1;
      g->executed++;
      g->pc = s->next;
      if (s->next <= pc && --g->budget <= 0) return SPENT;
      continue;
    }
    if (s->kind == BARRIER) {
      if (m || !may_park(f, s->count)) return STOPPED;
      g->covered[pc] = 1;
      g->executed++;
      g->pc++;
      w->cta->arrived++;
      w->cta->number = s->count;
      return PARKED;
    }
    if (s->kind == EXCHANGE || s->kind == WARP_BARRIER) {
      if (m || !(s->kind == EXCHANGE ? exchanged(w, s->data) : f->whole && warp_synchronised(w, s->count)))
        return STOPPED;
      if (spent(g, 1)) return SPENT;
      continue;
    }
    if (s->kind == MULTIPLY) {
      const Products *x = s->data;
      if (m || !f->whole || !multiplied(g, w, pc, x)) return STOPPED;
      if (spent(g, x->count)) return SPENT;
      continue;
    }
    if ((s->kind == COMMIT || s->kind == AWAIT || s->kind == COPY) && !has_room(g->queue)) return FULL;
    if (s->kind == COMMIT || s->kind == AWAIT) {
      if (m || !f->whole || !(s->kind == COMMIT ? committed(g->queue, w, f->index)
                                                : awaited(g->queue, w, f->index, s->count, &g->progress)))
        return STOPPED;
      if (spent(g, 1)) return SPENT;
      continue;
    }
    if (w->events->count + 2 > w->events->capacity || g->registers + 4 > MOST_ORIGINS || g->loaded == MOST_LOADS)
      return FULL;
    if ((s->kind == COPY && g->issued == MOST_COPIES) || (s->next && g->touched == MOST_TOUCHES)) return FULL;
    if ((s->next && w->in_flight) || !access_made(g, f, pc, m)) return STOPPED;
    if (s->next) g->touches[g->touched++] = f->index << 32 | pc;
    if (spent(g, 1)) return SPENT;
  }
}

/* The last warp has arrived: each thread of the CTA learns what any of them knows, and all may run. */
static void release(Grid *g, Frame **ready, Frame **parked, const Cta *c) {
  int64_t kept = 0;
  const Warp *any = 0;
  for (int64_t i = 0; i < g->parked; i++) {
    if (parked[i]->warp->cta != c) { parked[kept++] = parked[i]; continue; }
    any = parked[i]->warp;
    ready[g->ready++] = parked[i];
  }
  g->parked = kept;
  synchronise(any->clocks, c->first_thread, 32 * c->warps);
  for (int64_t i = g->ready - c->warps; i < g->ready; i++) ((Warp *)ready[i]->warp)->floor = (any->events->count << 5) - 1;
  ((Cta *)c)->arrived = 0;
  g->progress++;
}

/* `Machine.pick`: takes a frame out of `n`. */
static Frame *pick(Grid *g, Frame **ready, int64_t n) {
  int64_t at = 0;
  if (n > 1 && g->by_priority) {
    for (int64_t i = 1; i < n; i++)
      if (ready[i]->warp->priority > ready[at]->warp->priority) at = i;
    if (random_unit(g->random) < 0.02) ((Warp *)ready[at]->warp)->priority -= 1;
  } else if (n > 1)
    at = random_below(g->random, n);
  Frame *f = ready[at];
  ready[at] = ready[n - 1];
  return f;
}

/* Completes the operation `g->at`; 0 where Python has to. */
static int complete_chosen(Grid *g) {
  if (!completed(g->queue, g->at)) return 0;
  g->at = -1;
  g->progress++;
  return 1;
}

static int complete_any(Grid *g) {
  g->at = random_below(g->random, g->queue->pending);
  return complete_chosen(g);
}

/* `starvation.step` up to the choice; null where it is Python's, or where something has been completed instead (AGAIN).
 */
static Frame *pick_not_starved(Grid *g, Frame **ready, int64_t *how) {
  int64_t n = g->ready, others = 0, lagging = 0;
  if (!g->skip && g->queue->pending && random_unit(g->random) < g->eagerness && !complete_any(g)) {
    *how = COMPLETE;
    return 0;
  }
  Frame *slow[n], *quick[n], *f;
  for (int64_t i = 0; i < n; i++)
    if (ready[i]->warp->starved) slow[lagging++] = ready[i]; else quick[others++] = ready[i];
  if (!lagging) {
    f = pick(g, ready, n);
  } else {
    int relief = random_unit(g->random) < RELIEF;
    if (!relief && !others && g->queue->pending) {
      *how = complete_any(g) ? AGAIN : STARVED;
      return 0;
    }
    if (!relief && !others && g->polling && g->progress != g->starved_at) {
      *how = STARVED;
      return 0;
    }
    if (!relief && !others) {
      g->starved_at = -1;
      f = pick(g, ready, n);
    } else {
      Frame **from = relief ? slow : quick, **rest = relief ? quick : slow;
      int64_t size = relief ? lagging : others;
      f = pick(g, from, size);
      memcpy(ready, from, (size - 1) * sizeof *ready);
      memcpy(ready + size - 1, rest, (n - size) * sizeof *ready);
    }
  }
  g->ready--;
  return f;
}

/* Run frames until Python has something to do: `g->chosen` is the frame that stopped, if one has.  Frames are given
 * back in `entries` in their order. */
static int64_t run_ready(Grid *g, Frame **ready, Frame **parked, int64_t *pcs) {
  for (;;) {
    Frame *f;
    int64_t how = IDLE;
    g->chosen = -1;
    g->at = -1;
    if (!g->ready || g->executed >= g->until || !has_room(g->queue)) return IDLE;
    if (g->starving) {
      f = pick_not_starved(g, ready, &how);
      if (how == AGAIN) { g->skip = 0; continue; }
      if (!f) return how;
    } else {
      if (!g->skip && g->schedule == EARLY && g->queue->pending) {
        g->at = 0;
        if (!complete_chosen(g)) return COMPLETE;
        continue;
      }
      if (!g->skip && g->schedule == RANDOM && g->queue->pending && random_unit(g->random) < g->eagerness &&
          !complete_any(g))
        return COMPLETE;
      f = pick(g, ready, g->ready);
      g->ready--;
    }
    g->skip = 0;
    g->chosen = f->index;
    g->pc = pcs[f->index];
    if (g->timeouts && random_unit(g->random) < 0.02) return TIMED_OUT;
    g->budget = 1 + (int64_t)(-log(1.0 - random_unit(g->random)) / g->rate);
    how = run_frame(g, f);
    pcs[f->index] = g->pc;
    if (how == SPENT) ready[g->ready++] = f;
    else if (how == PARKED) {
      parked[g->parked++] = f;
      if (f->warp->cta->arrived == f->warp->cta->warps) release(g, ready, parked, f->warp->cta);
    } else
      return how;
  }
}

int64_t run_grid(Grid *g) {
  int64_t n = g->ready + g->parked;
  Frame *ready[n + 1], *parked[n + 1], *all[n + 1];
  int64_t pcs[n + 1];
  for (int64_t i = 0; i < n; i++) {
    all[i] = g->entries[i].frame;
    all[i]->index = i;
    pcs[i] = g->entries[i].pc;
    if (i < g->ready) ready[i] = all[i]; else parked[i - g->ready] = all[i];
  }
  /* Python has run the last warp that was missing. */
  for (int64_t i = 0; i < g->parked; i++) {
    const Cta *c = parked[i]->warp->cta;
    if (c->arrived == c->warps) { release(g, ready, parked, c); i = -1; }
  }
  int64_t how = run_ready(g, ready, parked, pcs);
  for (int64_t i = 0; i < g->ready; i++) g->entries[i] = (Entry){(Frame *)ready[i]->index, pcs[ready[i]->index]};
  for (int64_t i = 0; i < g->parked; i++)
    g->entries[g->ready + i] = (Entry){(Frame *)parked[i]->index, pcs[parked[i]->index]};
  return how;
}
