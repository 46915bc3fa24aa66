/* Warpgroups: warps issue wgmma, commit groups of them and wait for these, as in `exec/wgmma.py`.
 *
 * The first three warps that issue an operation do it here; Python starts it with the last one, and completes it.  What
 * has been done is in the log of the queue, in pairs of entries.
 */

/* Operations that not all warps have issued, and groups that are known here, at most. */
enum { MOST_JOINING = 16, MOST_ENDS = 16 };

/* An operation that the warps of `there` (a bit each) have issued; -1 as its `serial`: none.  `length` clocks are known to
 * them all, of the operands' `a` and `b`. */
typedef struct { int64_t serial, pc, a, b, scale, there, first, length; int32_t *seen, *fenced; } Joining;
/* `unfinished`: the first operation that has not completed; `loose`: operations that have started in no group.  The last
 * groups have `numbers` and `ends`, by their number. */
typedef struct Warpgroup {
  int64_t column, started, unfinished, loose, capacity, issued[4], committed[4], numbers[MOST_ENDS], ends[MOST_ENDS];
  Joining joining[MOST_JOINING];
} Warpgroup;
/* Rows of the descriptors, -1 for A in registers; `scale`: 0, 1, or -1 where the predicate `row` decides.  `unsure`:
 * registers of D may be undefined, and have to be looked at. */
typedef struct { int64_t a, b, scale, row, negated, unsure; } Asynchronous;

enum { SUSPENDED_FRAME = 2 };

static int number_in_group(const Warp *w) { return (int)((w->first - w->cta->first_thread) / 32 & 3); }

static void entered_pair(Queue *q, int kind, int64_t a, int64_t b) { entered(q, kind, a); entered(q, kind, b); }

static void wgmma_fenced(Grid *g, const Frame *f) {
  Warp *w = (Warp *)f->warp;
  for (int64_t i = 0; i < g->touched; i++)
    if (g->all[g->touches[i] >> 32]->warp == w) g->touches[i] |= (int64_t)1 << 31;
  w->touched = 0;
  w->fenced_once = w->fence_open = 1;
  entered_pair(g->queue, WGMMA_FENCED, f->index << 32, 0);
}

/* An operation that another warp has issued with the same operands, or a new one; null where Python knows it. */
static Joining *joining(Warpgroup *x, const Warp *w, int64_t serial, int64_t pc, const int64_t *operands) {
  Joining *free = 0;
  for (int i = 0; i < MOST_JOINING; i++) {
    Joining *j = x->joining + i;
    if (j->serial < 0) { free = j; continue; }
    if (j->serial != serial) continue;
    int three = __builtin_popcountll(j->there) == 3;
    return three || j->pc != pc || j->a != operands[0] || j->b != operands[1] || j->scale != operands[2] ? 0 : j;
  }
  for (int i = 0; i < 4; i++) if (x->issued[i] > serial) return 0;
  if (!free || w->clocks->used > x->capacity) return 0;
  *free = (Joining){serial, pc, operands[0], operands[1], operands[2], 0, w->first / 32, w->clocks->used, free->seen,
                    free->fenced};
  return free;
}

static int wgmma_issued(Grid *g, const Frame *f, int64_t pc) {
  Warp *w = (Warp *)f->warp;
  Warpgroup *x = w->warpgroup;
  const Asynchronous *s = g->steps[pc].data;
  const int64_t *r64 = w->registers[2];
  const uint8_t *rp = w->registers[3];
  if (!x || !w->fenced_once || w->touched) return 0;
  int64_t scale = s->scale < 0 ? RP(s->row)[0] ^ s->negated : s->scale;
  if (scale && s->unsure && w->sure != pc + 1) return 0;
  int64_t operands[3] = {s->a < 0 ? 0 : *R64(s->a), *R64(s->b), scale};
  int k = number_in_group(w);
  Joining *j = joining(x, w, x->issued[k], pc, operands);
  if (!j) return 0;
  const Clocks *c = w->clocks;
  knowledge_of(c->seen, c->capacity, j->length, w->first, j->seen, j->there != 0);
  knowledge_of(c->fenced, c->capacity, j->length, w->first, j->fenced, j->there != 0);
  j->there |= 1 << k;
  entered_pair(g->queue, WGMMA_ISSUED, f->index << 32 | pc, x->issued[k]++);
  w->in_flight = 1;
  w->fence_open = 0;
  return 1;
}

static int wgmma_committed(Grid *g, const Frame *f) {
  const Warp *w = f->warp;
  Warpgroup *x = w->warpgroup;
  if (!x) return 0;
  int k = number_in_group(w);
  int64_t number = x->committed[k] + 1, end = x->issued[k], at = number % MOST_ENDS;
  if (x->numbers[at] == number) {
    if (x->ends[at] != end) return 0;
  } else {
    /* Another warp may have committed it long ago. */
    for (int i = 0; i < 4; i++) if (x->committed[i] >= number) return 0;
    if (x->loose) return 0;
    x->numbers[at] = number;
    x->ends[at] = end;
    entered_pair(g->queue, WGMMA_COMMITTED, f->index << 32 | number, end);
  }
  x->committed[k] = number;
  return 1;
}

/* SUSPENDED_FRAME: the warp waits until the others have issued the operations. */
static int wgmma_awaited(Grid *g, const Frame *f, int64_t pc) {
  Warp *w = (Warp *)f->warp;
  Warpgroup *x = w->warpgroup;
  Clocks *c = w->clocks;
  if (!x) return 0;
  int k = number_in_group(w);
  int64_t number = x->committed[k] - g->steps[pc].count, at = number % MOST_ENDS;
  if (number <= 0) return 1;
  if (x->numbers[at] != number) return 0;
  if (x->started < x->ends[at]) {
    if (!f->listed) return 0;
    entered_pair(g->queue, SUSPENDED, f->index << 32 | pc, 0);
    return SUSPENDED_FRAME;
  }
  if (x->unfinished < x->ends[at]) return 0;
  for (int64_t row = w->first; row < w->first + 32; row++)
    for (int own = 0; own < 2; own++) {
      int64_t place = row * c->capacity + x->column + (own ? 1 + k : 0);
      if (c->seen[place] < number) c->seen[place] = (int32_t)number;
      if (c->fenced[place] < number) c->fenced[place] = (int32_t)number;
    }
  int all = x->issued[k] <= x->ends[at];
  if (all) w->in_flight = 0;
  entered_pair(g->queue, WGMMA_AWAITED, f->index << 32 | x->ends[at], all);
  return 1;
}

/* A step of a whole warp: 1 where it has been made. */
static int warpgroup_step(Grid *g, const Frame *f, int64_t pc) {
  switch (g->steps[pc].kind) {
    case WGMMA_FENCE: wgmma_fenced(g, f); return 1;
    case WGMMA_ISSUE: return wgmma_issued(g, f, pc);
    case WGMMA_COMMIT: return wgmma_committed(g, f);
    default: return wgmma_awaited(g, f, pc);
  }
}

/* `fence.proxy.async` of a whole warp that has initialised no mbarrier since the last. */
static int proxy_fenced(const Warp *w) {
  Clocks *c = w->clocks;
  if (w->inits) return 0;
  for (int64_t row = w->first; row < w->first + 32; row++)
    clocks_learn(c->fenced, c->capacity, c->used, 0, row, 1, c->seen + row * c->capacity);
  clocks_tick(c->seen, c->capacity, w->first, (int32_t)++c->now[w->first / 32]);
  return 1;
}
