/* Divergent branches: frames divide, meet and lose lanes, as in `reconvergence.py`. */

static int lanes_in(const uint8_t *mask) {
  int n = 0;
  for (int i = 0; i < 32; i++) n += mask[i];
  return n;
}

/* Run the lanes of ``mask``. */
static void give_lanes(Grid *g, Frame *f, const uint8_t *mask) {
  memcpy(f->mask, mask, 32);
  f->lanes = lanes_in(mask);
  f->whole = f->lanes == 32;
  f->changed = 1;
  g->moved = 1;
}

/* A frame for the lanes of ``mask``, beside ``f``; it is ready. */
static void new_frame(Grid *g, const Frame *f, int64_t pc, const uint8_t *mask, int64_t reconverge, Frame *parent) {
  Frame *made = g->spare;
  if (made) g->spare = made->parent; else made = g->pool + g->made++;
  *made = (Frame){f->warp, reconverge, 0, 0, f->index, {0}, parent, 0, pc, 0, 1, 0, 0};
  give_lanes(g, made, mask);
  g->list[g->ready++] = made;
}

/* `reconvergence.diverge`: CONTINUES where ``f`` itself does, GONE where it waits for its sides; STOPPED where Python is to
 * divide it. */
enum { CONTINUES = -1 };
static int diverge(Grid *g, Frame *f, const Step *s, const uint8_t *taken) {
  int64_t meet = s->count, pcs[2] = {s->next, g->pc + 1}, kept = f->reconverge;
  uint8_t sides[2][32];
  int going[2], n = 0;
  int64_t left = g->rooms - g->made;
  for (const Frame *x = g->spare; x; x = x->parent) left++;
  if (left < 2) return FULL;
  memcpy(sides[0], taken, 32);
  for (int i = 0; i < 32; i++) sides[1][i] = (f->whole ? 1 : f->mask[i]) & !taken[i];
  for (int i = 0; i < 2; i++) if (pcs[i] != meet || meet < 0) going[n++] = i;
  if (!n) return STOPPED;
  g->covered[g->pc] = 1;
  g->executed++;
  if (meet == kept || meet < 0) {
    g->pc = pcs[going[0]];
    give_lanes(g, f, sides[going[0]]);
    if (n == 2 && f->parent) f->parent->children++;
    if (n == 2) new_frame(g, f, pcs[1], sides[1], kept, f->parent);
    return CONTINUES;
  }
  g->pc = f->pc = meet;
  f->changed = g->moved = 1;
  f->children = n;
  for (int i = 0; i < n; i++) new_frame(g, f, pcs[going[i]], sides[going[i]], meet, f);
  return GONE;
}

/* `reconvergence.join`, of a warp of which some lane has not left. */
static void join(Grid *g, Frame *f) {
  Frame *parent = f->parent;
  int64_t index = f->index;
  uint8_t live[32];
  g->moved = 1;
  if (f->fresh) { f->parent = g->spare; g->spare = f; }
  if (!parent || --parent->children) return;
  for (int i = 0; i < 32; i++) live[i] = parent->warp->live[i] & (parent->whole ? 1 : parent->mask[i]);
  parent->index = parent->listed ? parent->index : index;
  if (!lanes_in(live)) { join(g, parent); return; }
  give_lanes(g, parent, live);
  g->list[g->ready++] = parent;
}

/* The last lanes of a warp leave; STOPPED where others may wait for it, or it is the last of its CTA. */
static int finish_warp(Grid *g, Frame *f, Warp *w) {
  Cta *c = w->cta;
  if (g->steps[g->pc].count || c->live_warps <= 1 || c->partial || c->arrived) return STOPPED;
  if (!has_room(g->queue)) return FULL;
  memset(w->live, 0, 32);
  c->live_warps--;
  g->covered[g->pc] = 1;
  g->executed++;
  g->progress++;
  entered(g->queue, LEFT, f->index);
  return GONE;
}

/* `reconvergence.leave`. */
static int leave(Grid *g, Frame *f, const uint8_t *m) {
  Warp *w = (Warp *)f->warp;
  uint8_t left[32], live[32];
  for (int i = 0; i < 32; i++) {
    int gone = m ? m[i] : f->whole ? 1 : f->mask[i];
    live[i] = w->live[i] & !gone;
    left[i] = (f->whole ? 1 : f->mask[i]) & !gone;
  }
  if (w->gathered) return STOPPED;
  if (!lanes_in(live)) return finish_warp(g, f, w);
  memcpy(w->live, live, 32);
  g->covered[g->pc] = 1;
  g->executed++;
  if (!lanes_in(left)) { join(g, f); return GONE; }
  give_lanes(g, f, left);
  g->pc++;
  return CONTINUES;
}
