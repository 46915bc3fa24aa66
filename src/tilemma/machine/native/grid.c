/* Runs warps: chooses the next frame as `Machine.step` does, and executes registers, plain accesses, branches of all
 * lanes and barriers of the CTA, until something else comes.
 *
 * What `kind` says of a step is what `Machine.execute` does with it; the step at which a frame stops has not begun,
 * except where a sequence on registers stopped at a NaN.
 */

/* A step that has not been made: Python executes it, or the frame waits there. */
static int suspended(Grid *g, int how) {
  if (how != SUSPENDED_FRAME) return STOPPED;
  g->covered[g->pc] = 1;
  g->executed++;
  return GONE;
}

/* Run the frame `g->chosen` from `g->pc` on, for `g->budget` visible steps. */
static int64_t run_frame(Grid *g, Frame *f) {
  const Warp *w = f->warp;
  const uint8_t *rp = w->registers[3];
  uint8_t guarded[32];
  for (;;) {
    int64_t pc = g->pc;
    const uint8_t *mask = f->whole ? 0 : f->mask;
    if (pc == f->reconverge) {
      if (w->gathered) return STOPPED;
      join(g, f);
      return GONE;
    }
    if (g->executed >= g->limit) return STOPPED;
    const Step *s = g->steps + pc;
    if (s->kind == OTHER && s->guard < 0) return STOPPED;
    if (s->kind == SEQUENCE) {
      if (s->lanes) {
        if (mask || (s->halves && w->in_flight)) return STOPPED;
        if (((int64_t)s->lanes & 2 && g->recorded == MOST_RECORDS) || !touching(g, f, pc)) return FULL;
        if ((int64_t)s->lanes & 2) g->records[g->recorded++].where = f->index << 32 | pc;
        if (s->halves) ((Warp *)w)->touched = 1;
      }
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
        if (n && n != f->lanes) {
          int how = diverge(g, f, s, guarded);
          if (how != CONTINUES) return how;
          continue;
        }
        g->covered[pc] = 1;
        g->executed++;
        g->pc = n ? s->next : pc + 1;
        continue;
      }
      if (!n) { g->executed++; g->pc++; continue; }
      if (s->kind == OTHER) return STOPPED;
      m = n == 32 ? 0 : guarded;
    }
    if (s->kind == BRANCH) {
      g->covered[pc] = 1;
      g->executed++;
      g->pc = s->next;
      if (s->next <= pc && --g->budget <= 0) return SPENT;
      continue;
    }
    if (s->kind == LEAVE) {
      int how = leave(g, f, m);
      if (how != CONTINUES) return how;
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
    if (s->kind == BULK_AWAIT && w->bulk) return STOPPED;
    if (s->kind == NOTHING || s->kind == CLOCK || s->kind == ACTIVE || s->kind == BULK_AWAIT) {
      if (s->kind == CLOCK) tell_time(g, w, s->count, m);
      if (s->kind == ACTIVE) tell_active(w, s->count, m);
      if (spent(g, 1)) return SPENT;
      continue;
    }
    if (s->kind == PROXY_FENCE) {
      if (m || !f->whole || !proxy_fenced(w)) return STOPPED;
      if (spent(g, 1)) return SPENT;
      continue;
    }
    if (s->kind == FRAGMENT) {
      if (m || !f->whole || !fragment_moved(g, f, pc)) return STOPPED;
      if (spent(g, 1)) return SPENT;
      continue;
    }
    if (s->kind == ARRIVE || s->kind == WAIT) {
      if (!has_room(g->queue)) return FULL;
      int how = s->kind == ARRIVE ? arrived(g, w, s->data, m) : waited(g, f, pc, m);
      if (how != 1) return suspended(g, how);
      if (spent(g, 1)) return SPENT;
      continue;
    }
    if (s->kind >= WGMMA_FENCE && s->kind <= WGMMA_AWAIT) {
      if (!has_room(g->queue)) return FULL;
      int how = m || !f->whole ? 0 : warpgroup_step(g, f, pc);
      if (how != 1) return suspended(g, how);
      if (spent(g, 1)) return SPENT;
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
    if (must_enter(g, s)) return FULL;
    int followed = is_followed(s), stores = followed && s->kind == SHARED_STORE;
    if ((s->next && w->in_flight) || (stores && g->queue->pending)) return STOPPED;
    if (followed) record(g, f, pc, m);
    if (!access_made(g, f, pc, m)) return STOPPED;
    g->recorded += followed;
    g->stored |= stores;
    if (s->next) { touching(g, f, pc); ((Warp *)w)->touched = 1; }
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

/* How Python knows a frame: by its number, or its address. */
static int64_t named(const Frame *f) { return f->listed ? f->index : (int64_t)f; }

/* Run frames, first ``f`` if it is one, until Python has something to do: `g->chosen` is the frame that stopped, if one has.  Frames are given
 * back in `entries` in their order. */
static int64_t run_ready(Grid *g, Frame **ready, Frame **parked, Frame *f) {
  for (;; f = 0) {
    int64_t how = IDLE;
    g->chosen = -1;
    g->at = -1;
    if (f) goto run;
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
    g->pc = f->pc;
    if (g->timeouts && random_unit(g->random) < 0.02) {
      g->chosen = named(f);
      return TIMED_OUT;
    }
    g->budget = 1 + (int64_t)(-log(1.0 - random_unit(g->random)) / g->rate);
  run:
    how = run_frame(g, f);
    if (how == GONE) continue;
    f->pc = g->pc;
    g->chosen = named(f);
    if (how == SPENT) ready[g->ready++] = f;
    else if (how == PARKED) {
      parked[g->parked++] = f;
      if (f->warp->cta->arrived == f->warp->cta->warps) release(g, ready, parked, f->warp->cta);
    } else
      return how;
  }
}

int64_t run_grid(Grid *g) {
  int64_t n = g->ready + g->parked, given = n + (g->resumed != 0), at = 0;
  Frame *ready[n + 1 + g->rooms], *parked[n + 1], *all[n + 1];
  for (int64_t i = 0; i < given; i++) {
    all[i] = i < n ? g->entries[i].frame : g->resumed;
    all[i]->index = i;
    all[i]->listed = 1;
    if (i < g->ready) ready[i] = all[i]; else if (i < n) parked[i - g->ready] = all[i];
  }
  g->list = ready;
  g->all = all;
  g->made = g->moved = g->recorded = g->stored = 0;
  g->spare = 0;
  /* Python has run the last warp that was missing. */
  for (int64_t i = 0; i < g->parked; i++) {
    const Cta *c = parked[i]->warp->cta;
    if (c->arrived == c->warps) { release(g, ready, parked, c); i = -1; }
  }
  if (g->resumed) g->pc = all[n]->pc;
  int64_t how = run_ready(g, ready, parked, g->resumed ? all[n] : 0);
  for (int64_t i = 0; i < g->ready; i++) g->entries[at++] = (Entry){ready[i], named(ready[i])};
  for (int64_t i = 0; i < g->parked; i++) g->entries[at++] = (Entry){parked[i], named(parked[i])};
  for (int64_t i = 0; i < given; i++) all[i]->listed = 0;
  return how;
}
