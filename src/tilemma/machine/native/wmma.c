/* wmma.load from the CTA's own shared memory and wmma.store to one array in global memory, as in `exec/wmma.py`: each lane
 * moves its elements one after the other.
 */

/* `at`: the address, and the registers of the fragment.  `stride`: the row of the step between lines, or -1, where it is
 * `dense` elements.  An element of lane i is at [i * each + k] of `line` and `offset`; it has `width` bytes. */
typedef struct {
  const Access *at; int64_t stride, dense, each, width, is_load, is_shared; const int64_t *line, *offset;
} Transfer;

/* Whether all lanes give one address and one step; elements do not overlap. */
static int is_uniform(const Warp *w, const Transfer *t, int64_t *start, int64_t *step) {
  Lanes l;
  addresses(w, t->at, 0, &l);
  const uint32_t *steps = (uint32_t *)w->registers[1] + 32 * t->stride;
  *start = l.address[0];
  *step = t->stride < 0 ? t->dense : steps[0];
  for (int i = 1; i < 32; i++)
    if (l.address[i] != *start || (t->stride >= 0 && steps[i] != *step)) return 0;
  return *step >= t->dense;
}

static Lanes elements_at(const Transfer *t, int64_t k, int64_t start, int64_t step) {
  int64_t address[32];
  for (int i = 0; i < 32; i++) {
    int64_t n = i * t->each + k;
    address[i] = start + (t->line[n] * step + t->offset[n]) * t->width;
  }
  return all_lanes(address);
}

/* Where the registers of a lane have its element `k`. */
static uint8_t *element_of(const Warp *w, const Transfer *t, int64_t k, int lane) {
  int64_t size = t->at->bytes[0], byte = k * t->width;
  uint8_t *file = w->registers[size == 8 ? 2 : 1];
  return file + (32 * t->at->rows[byte / size] + lane) * size + byte % size;
}

static int load_made(const Warp *w, const Transfer *t, int64_t start, int64_t step) {
  Shared *s = w->shared;
  for (int64_t k = 0; k < t->each; k++) {
    Lanes l = elements_at(t, k, start, step);
    if (!aligned_inside(&l, s, t->width) || !writes_known(w, &l, t->width, w->floor, 1)) return 0;
  }
  int32_t *reads = s->reads + w->reader * s->stride;
  for (int64_t k = 0; k < t->each; k++) {
    Lanes l = elements_at(t, k, start, step);
    int64_t event = (w->events->count + k) << 5;
    for (int i = 0; i < 32; i++) {
      memcpy(element_of(w, t, k, i), s->data + l.address[i], t->width);
      for (int j = 0; j < t->width; j++) reads[l.address[i] + j] = (int32_t)(event + i);
    }
  }
  int64_t last = ((w->events->count + t->each) << 5) - 1;
  if (s->last[w->reader] < last) s->last[w->reader] = last;
  if (s->last_read < last) s->last_read = last;
  return 1;
}

static int store_made(const Warp *w, const Transfer *t, int64_t start, int64_t step) {
  Allocation *a = 0;
  for (int64_t k = 0; k < t->each; k++) {
    Lanes l = elements_at(t, k, start, step);
    for (int i = 1; i < 32; i++)
      if (l.address[i] <= l.address[i - 1]) return 0;
    a = find(w->memory, &l, t->width);
    if (!a || !a->writable || a->holes || !a->writer || a->logged || !global_known(w, &l, a, a->writer, t->width)) return 0;
    if (a->reader && !(global_known(w, &l, a, a->reader, t->width) && global_known(w, &l, a, a->other, t->width))) return 0;
  }
  for (int64_t k = 0; k < t->each; k++) {
    Lanes l = elements_at(t, k, start, step);
    int64_t event = w->serial << 32 | (w->events->count + k) << 5;
    a = find(w->memory, &l, t->width);
    for (int i = 0; i < 32; i++) {
      int64_t at = l.address[i] - a->base;
      memcpy(a->data + at, element_of(w, t, k, i), t->width);
      for (int j = 0; j < t->width; j++) a->writer[at + j] = event + i;
    }
  }
  return 1;
}

/* Whether the fragment of a whole warp has been moved. */
static int fragment_moved(Grid *g, const Frame *f, int64_t pc) {
  const Warp *w = f->warp;
  const Transfer *t = g->steps[pc].data;
  int64_t start, step, now = now_of(w);
  if (w->events->count + t->each > w->events->capacity || !is_uniform(w, t, &start, &step)) return 0;
  int shared = t->is_shared || start >= WINDOW;
  if (start >= WINDOW) start -= WINDOW;
  if (shared != t->is_load || (t->is_load && !reads_shared(g, f))) return 0;
  if (!(t->is_load ? load_made(w, t, start, step) : store_made(w, t, start, step))) return 0;
  for (int64_t k = 0; k < t->each; k++) event_made(w, pc, w->first, now, w->first);
  return 1;
}
