/* mbarriers: arrivals of one warp, and waits, where nothing is to be reported and nobody to be woken: `exec/mbarriers.py`.
 */

/* `pending` arrivals and `tx` bytes are missing from the phase.  Its clocks so far, of which `taken` count, and those of
 * the phases before, of which `released` do: in each proxy.  `foreign`: Python has clocks of other clusters beside them.
 * `awaited`: by the warp, the phases that it has waited for, or -1. */
typedef struct Mbarrier {
  int64_t address, count, pending, tx, phase, init_column, init_clock, column, waiters, forgiven, foreign, room, taken,
  released; int32_t *message[2], *done[2]; int64_t *awaited;
} Mbarrier;
/* Rows of the state and of the amount, or -1; a wait has in `state` its predicate, in `amount` what it waits for.
 * `expects`: the amount is one of bytes; `by_parity`: a wait for a parity; `blocks`: it may be suspended. */
typedef struct { const Access *at; int64_t state, amount, expects, by_parity, blocks, relaxed; } Phase;
enum { MOST_BYTES = (1 << 20) - 1 };
static const int64_t WINDOW = 0x700000000000;

/* The mbarrier that all lanes name, whose init the first one knows. */
static Mbarrier *mbarrier_of(const Warp *w, const Lanes *l) {
  const Shared *s = w->shared;
  const Clocks *c = w->clocks;
  int64_t at = l->address[0];
  for (int i = 1; i < l->n; i++) if (l->address[i] != at) return 0;
  if (at >= WINDOW) at -= WINDOW;
  for (int64_t i = 0; i < s->mbarriers; i++) {
    Mbarrier *b = s->mbarrier[i];
    if (b->address != at) continue;
    int known = c->seen[(w->first + l->lane[0]) * c->capacity + b->init_column] >= b->init_clock;
    return known && !b->foreign ? b : 0;
  }
  return 0;
}

/* Clocks that were `length`, or none, take in the first `n` of `news`. */
static void take(int32_t *clocks, int64_t length, const int32_t *news, int64_t n) {
  if (n > length) memset(clocks + length, 0, (n - length) * sizeof *clocks);
  clocks_learn(clocks, 0, n, 0, 0, 1, news);
}

static int arrived(Grid *g, const Warp *w, const Phase *x, const uint8_t *m) {
  Clocks *c = w->clocks;
  Lanes l;
  addresses(w, x->at, m, &l);
  Mbarrier *b = l.n ? mbarrier_of(w, &l) : 0;
  if (!b || c->foreign[w->first / 32] || c->used > b->room) return 0;
  int64_t sum = 0, rows[32], tx = b->tx, n = l.n;
  for (int i = 0; i < l.n; i++) {
    rows[i] = w->first + l.lane[i];
    if (x->amount >= 0) sum += ((uint32_t *)w->registers[1])[32 * x->amount + l.lane[i]];
  }
  if (x->expects) tx += sum;
  else if (x->amount >= 0) n = sum;
  int64_t left = b->pending - n;
  if (left < 0 || tx > MOST_BYTES || tx < -MOST_BYTES || (!left && (tx < 0 || (!tx && b->waiters)))) return 0;
  for (int i = 0; i < l.n && x->state >= 0; i++)
    ((int64_t *)w->registers[2])[32 * x->state + l.lane[i]] = b->phase << 32 | b->pending;
  for (int k = 0; k < 2; k++) {
    int32_t most[c->used];
    clocks_most(k ? c->fenced : c->seen, c->capacity, c->used, rows, 0, l.n, most);
    take(b->message[k], b->taken, most, c->used);
  }
  if (b->taken < c->used) b->taken = c->used;
  clocks_tick(c->seen, c->capacity, w->first, (int32_t)++c->now[w->first / 32]);
  b->pending = left;
  b->tx = tx;
  if (left || tx) return 1;
  b->phase++;
  b->pending = b->count;
  for (int k = 0; k < 2; k++) {
    take(b->done[k], b->released, b->message[k], b->taken);
    int64_t length = b->released > b->taken ? b->released : b->taken;
    if (b->column >= length) memset(b->done[k] + length, 0, (b->column + 1 - length) * sizeof **b->done);
    if (b->done[k][b->column] < b->phase) b->done[k][b->column] = (int32_t)b->phase;
  }
  if (b->released < b->taken) b->released = b->taken;
  if (b->released < b->column + 1) b->released = b->column + 1;
  b->taken = 0;
  g->progress++;
  return 1;
}

/* Whether the frame has waited; SUSPENDED_FRAME where it waits on. */
static int waited(Grid *g, const Frame *f, int64_t pc, const uint8_t *m) {
  const Warp *w = f->warp;
  const Phase *x = g->steps[pc].data;
  Clocks *c = w->clocks;
  Lanes l;
  int64_t rows[32];
  addresses(w, x->at, m, &l);
  Mbarrier *b = l.n && !f->late ? mbarrier_of(w, &l) : 0;
  if (!b || b->forgiven) return 0;
  int through = 1, parity = 0;
  for (int i = 0; i < l.n; i++) {
    rows[i] = w->first + l.lane[i];
    int64_t wanted = x->by_parity ? ((uint32_t *)w->registers[1])[32 * x->amount + l.lane[i]]
                                  : ((int64_t *)w->registers[2])[32 * x->amount + l.lane[i]];
    if (!i) parity = wanted & 1;
    through &= x->by_parity ? (b->phase & 1) != (wanted & 1) : b->phase > wanted >> 32;
  }
  if (!through) {
    uint32_t saved[625];
    if (!x->blocks || !x->by_parity || !f->listed) return 0;
    memcpy(saved, g->random, sizeof saved);
    if (random_unit(g->random) < g->impatience) {
      memcpy(g->random, saved, sizeof saved);
      return 0;
    }
    b->waiters++;
    g->timeouts = 1;
    entered_pair(g->queue, SUSPENDED, f->index << 32 | pc, b->address << 1 | parity);
    return SUSPENDED_FRAME;
  }
  int64_t *last = b->awaited + w->first / 32;
  if (x->by_parity) *last = *last < 0 ? 1 - parity : *last + ((*last & 1) == parity);
  for (int i = 0; i < l.n; i++) ((uint8_t *)w->registers[3])[32 * x->state + l.lane[i]] = 1;
  if (b->released && !x->relaxed) {
    clocks_learn(c->seen, c->capacity, b->released, rows, 0, l.n, b->done[0]);
    clocks_learn(c->fenced, c->capacity, b->released, rows, 0, l.n, b->done[1]);
  }
  return 1;
}
