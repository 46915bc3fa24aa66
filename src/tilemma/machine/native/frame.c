/* Runs a frame: registers, plain accesses and branches of all its lanes, until something else comes.
 *
 * The structures are arrays of 64-bit integers on the Python side (`frames.py`).  What `step_of` says of a step is what
 * `Machine.execute` does with it; the step at which a call stops has not begun, except where a sequence on registers
 * stopped at a NaN.
 */

enum { OTHER, SEQUENCE, BRANCH, SHARED_LOAD, SHARED_STORE, GLOBAL_LOAD, GLOBAL_STORE, MATRIX_LOAD, EXCHANGE, COPY };
enum { STOPPED, SPENT, PARTLY, FULL };
enum { MOST_EVENTS = 256, MOST_ORIGINS = 64, MOST_COPIES = 16 };

/* `next`: the step after a sequence, or the target of a branch.  `data`: the operations or the `Access`; `count`: of
 * operations.  A matrix load has the lanes that give addresses and the map of `matrix_load`. */
typedef struct { int64_t kind, next, guard, count; void *data; const uint8_t *lanes; const int64_t *halves; } Step;

/* `column` is that of the warp's cp.async, -1 where it has none yet; `surplus` counts their sectors as `counted` does
 * their passes. */
typedef struct {
  const Warp *warp; const Step *steps; uint8_t *covered; int64_t *counted; int64_t reconverge, lanes, limit, floor, now,
  capacity, collective; int64_t *origins; int64_t column; Copy *copies; int64_t *surplus;
  /* Changed: */
  int64_t pc, budget, executed, done, events, made, stores, last_read, last_write, registers, issued;
  /* Negative (~step): a read of global memory by the step. */
  int32_t steps_of[MOST_EVENTS];
} Frame;

/* A cp.async; `sizes` as in `copy_issue`. */
typedef struct { const Access *to, *from; int64_t sizes; } Issue;

/* Executions, surplus passes or sectors and the worst of them, for each step. */
static void note(int64_t *counted, int64_t pc, int64_t extra) {
  int64_t *n = counted + 3 * pc;
  n[0]++;
  n[1] += extra;
  if (extra > n[2]) n[2] = extra;
}

static void event_made(Frame *f, int64_t pc, int64_t column) {
  Events *e = f->warp->events;
  e->column[f->events] = (int32_t)column;
  e->clock[f->events] = (int32_t)f->now;
  e->alone[f->events] = (int32_t)f->warp->first;
  if (column != f->warp->first) e->collective = 1;
  f->steps_of[f->made++] = (int32_t)pc;
  f->events++;
}

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

/* Whether a cp.async has been issued. */
static int copy_made(Frame *f, int64_t pc, const uint8_t *m) {
  const Warp *w = f->warp;
  const Issue *x = f->steps[pc].data;
  Events *e = w->events;
  int64_t event = f->events << 5, passes, never = 0x7fffffff;
  if (f->column < 0) return 0;
  Copy *copy = f->copies + f->issued;
  int64_t found = copy_issue(w, x->to, x->from, x->sizes, f->floor, w->serial << 32 | event, event | 1 << 30, m, copy,
                             &passes);
  if (found < 0) return 0;
  if (found != NOTHING_READ) {
    note(f->surplus, pc, (found & 0xffffffff) >> 1);
    if (found & 1) event_made(f, ~pc, w->first);
  }
  note(f->counted, pc, passes);
  e->column[f->events] = e->alone[f->events] = (int32_t)f->column;
  e->clock[f->events] = (int32_t)never;
  copy->event = f->events << 5 | 1 << 30;
  if (f->last_write < copy->event + 31) f->last_write = copy->event + 31;
  f->steps_of[f->made++] = (int32_t)pc;
  f->events++;
  f->issued++;
  return 1;
}

/* Whether the access has been made. */
static int access_made(Frame *f, int64_t pc, const uint8_t *m) {
  const Warp *w = f->warp;
  const Step *s = f->steps + pc;
  const Access *x = s->data;
  int64_t event = f->events << 5, extra;
  switch (s->kind) {
    case SHARED_LOAD:
      if (w->reader < 0) return 0;
      extra = shared_load(w, x, f->floor, event, m);
      if (extra < 0) return 0;
      f->last_read = event + 31;
      break;
    case COPY: return copy_made(f, pc, m);
    case SHARED_STORE:
      extra = shared_store(w, x, f->floor, event, m);
      if (extra < 0) return 0;
      if (f->last_write < event + 31) f->last_write = event + 31;
      f->stores++;
      break;
    case MATRIX_LOAD:
      if (w->reader < 0 || f->collective < 0 || m) return 0;
      extra = matrix_load(w, x, f->floor, event, s->lanes, s->halves,
                          f->origins ? f->origins + 64 * f->registers : 0);
      if (extra < 0) return 0;
      f->last_read = event + 31;
      f->registers += x->count;
      note(f->counted, pc, extra);
      event_made(f, pc, f->collective);
      return 1;
    default: {
      int64_t found = s->kind == GLOBAL_LOAD ? global_load(w, x, w->serial << 32 | event, m, 1)
                                             : global_store(w, x, w->serial << 32 | event, m, 1);
      if (found < 0) return 0;
      note(f->counted, pc, (found & 0xffffffff) >> 1);
      if (s->kind == GLOBAL_STORE) f->stores++;
      if (found & 1) event_made(f, pc, w->first);
      return 1;
    }
  }
  note(f->counted, pc, extra);
  event_made(f, pc, w->first);
  return 1;
}

int64_t run_frame(Frame *f, const uint8_t *mask) {
  const Warp *w = f->warp;
  const uint8_t *rp = w->registers[3];
  uint8_t guarded[32];
  for (;;) {
    int64_t pc = f->pc;
    if (pc == f->reconverge || f->executed >= f->limit) return STOPPED;
    const Step *s = f->steps + pc;
    if (s->kind == OTHER) return STOPPED;
    if (s->kind == SEQUENCE) {
      f->covered[pc] = 1;
      f->done = run_lanes(w->registers, s->data, (int)s->count, mask);
      if (f->done != s->count) return PARTLY;
      f->executed += s->count;
      f->pc = s->next;
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
        f->covered[pc] = 1;
        f->executed++;
        f->pc = n ? s->next : pc + 1;
        continue;
      }
      if (!n) { f->executed++; f->pc++; continue; }
      m = n == 32 ? 0 : guarded;
    }
    if (s->kind == BRANCH) {
      f->covered[pc] = 1;
      f->executed++;
      f->pc = s->next;
      if (s->next <= pc && --f->budget <= 0) return SPENT;
      continue;
    }
    if (s->kind == EXCHANGE) {
      if (m || !exchanged(w, s->data)) return STOPPED;
      f->covered[pc] = 1;
      f->executed++;
      f->pc++;
      if (--f->budget <= 0) return SPENT;
      continue;
    }
    if (f->made + 2 > MOST_EVENTS || f->events + 2 > f->capacity || f->registers + 4 > MOST_ORIGINS) return FULL;
    if (s->kind == COPY && f->issued == MOST_COPIES) return FULL;
    if (!access_made(f, pc, m)) return STOPPED;
    f->covered[pc] = 1;
    f->executed++;
    f->pc++;
    if (--f->budget <= 0) return SPENT;
  }
}
