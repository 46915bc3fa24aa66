/* Operations in flight, and the groups of cp.async: what `Machine.complete` and `exec/copies.py` do with them.
 *
 * `Queue` has the operations of `Machine.pending` in its order; those of the async proxy, which Python completes, have no
 * copy.  Python repeats on its side what the log says.
 */

enum {
  ISSUED, COMPLETED, COMMITTED, AWAITED, FIRST_READ, WGMMA_FENCED, WGMMA_ISSUED, WGMMA_COMMITTED, WGMMA_AWAITED,
  SUSPENDED, LEFT
};
enum { MOST_OPEN = 64 };

/* `group`: that of the copy, 0 where it is not committed. */
typedef struct { const Copy *copy; const Warp *warp; int64_t group; } Operation;
typedef struct { Operation *operations; int64_t pending, capacity, *log, logged, room; } Queue;
/* The copies of a warp: `number` groups, those up to `waited` awaited; the events of the open copies.  Not `plain` where
 * its lanes have groups of their own. */
typedef struct Groups { int64_t plain, number, waited, opened, open[MOST_OPEN]; } Groups;

static void entered(Queue *q, int kind, int64_t value) { q->log[q->logged++] = value << 4 | kind; }

/* Whether there is room for one more operation, and for the entries of all that may follow from it. */
static int has_room(const Queue *q) { return q->pending < q->capacity && q->logged + q->pending + 4 < q->room; }

static int is_completable(const Operation *o) { return o->copy && (o->warp->shared->origin || o->warp->shared->origins); }

static int completed(Queue *q, int64_t at) {
  Operation *o = q->operations + at;
  if (!is_completable(o)) return 0;
  Shared *s = o->warp->shared;
  if (!s->origin) s->origin = s->origins;
  copy_complete(s, o->copy);
  memmove(o, o + 1, (q->pending - at - 1) * sizeof *o);
  q->pending--;
  entered(q, COMPLETED, at);
  return 1;
}

/* The origins of words of `size` bytes that lanes have loaded to register `i` of an access, and of those that they have
 * stored from it: as `provenance.global_loaded` and `provenance.stored`.  Addresses are -1 where a lane has none. */
void origins_loaded(int64_t *held, const int64_t *address, int64_t i, int64_t size) {
  for (int lane = 0; lane < 32; lane++)
    for (int64_t half = 0; half < size / 2 && address[lane] >= 0; half++)
      held[lane * (size / 2) + half] = address[lane] + size * i + 2 * half;
}

void origins_stored(int64_t *origins, const int64_t *held, const int64_t *address, int64_t i, int64_t size) {
  for (int64_t half = 0; half < size / 2; half++)
    for (int lane = 0; lane < 32; lane++) {
      int64_t from = held[lane * (size / 2) + half], *to = origins + address[lane] + size * i + 2 * half;
      if (address[lane] < 0) continue;
      to[0] = from > 0 ? from : 0;
      to[1] = from > 0 ? from + 1 : 0;
    }
}

/* A copy joins those that are open; 0 where the warp has no room for it. */
static int opened(Queue *q, const Warp *w, const Copy *c, int64_t where) {
  Groups *g = w->groups;
  if (g->plain && g->opened < MOST_OPEN) g->open[g->opened++] = c->event; else g->plain = 0;
  q->operations[q->pending++] = (Operation){c, w, 0};
  entered(q, ISSUED, where);
  return 1;
}

/* Whether cp.async.commit_group has been executed, by a whole warp whose lanes have the same groups. */
static int committed(Queue *q, const Warp *w, int64_t index) {
  Groups *g = w->groups;
  if (!g || !g->plain) return 0;
  g->number++;
  for (int64_t i = 0; i < g->opened; i++) w->events->clock[(g->open[i] & 0x3fffffff) >> 5] = (int32_t)g->number;
  g->opened = 0;
  for (int64_t i = 0; i < q->pending; i++)
    if (q->operations[i].warp == w && !q->operations[i].group) q->operations[i].group = g->number;
  entered(q, COMMITTED, index);
  return 1;
}

/* Whether cp.async.wait_group has been executed: all groups but the last `keep`, or, where `keep` is negative, all
 * copies. */
static int awaited(Queue *q, const Warp *w, int64_t index, int64_t keep, int64_t *progress) {
  Groups *g = w->groups;
  if (!g || !g->plain) return 0;
  int64_t last = keep < 0 ? g->number + 1 : g->number - keep;
  for (int64_t i = 0; i < q->pending; i++) {
    Operation *o = q->operations + i;
    if (o->warp == w && (keep < 0 || (o->group && o->group <= last)) && !is_completable(o)) return 0;
  }
  if (keep < 0) committed(q, w, index);
  if (last <= g->waited) last = 0;
  entered(q, AWAITED, index << 32 | last);
  for (int64_t i = 0; i < q->pending;) {
    Operation *o = q->operations + i;
    if (o->warp == w && o->group && o->group <= last) { completed(q, i); ++*progress; } else i++;
  }
  for (int lane = 0; lane < 32; lane++) {
    int32_t *seen = w->clocks->seen + (w->first + lane) * w->clocks->capacity + w->copies + lane;
    if (*seen < last) *seen = (int32_t)last;
  }
  if (last) g->waited = last;
  return 1;
}
