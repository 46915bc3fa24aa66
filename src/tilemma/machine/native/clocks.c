/* Vector clocks of many threads at once: `clocks.py` says what they are.  Rows have `capacity` integers, of which the
 * first `used` count.  Threads are those of `rows`, or `n` of them from `first` on where `rows` is null.
 */

/* The clocks that any of the threads has seen. */
WIDEST void clocks_most(const int32_t *table, int64_t capacity, int64_t used, const int64_t *rows, int64_t first,
                        int64_t n, int32_t *most) {
  for (int64_t i = 0; i < n; i++) {
    const int32_t *row = table + (rows ? rows[i] : first + i) * capacity;
    if (!i) memcpy(most, row, used * sizeof *most);
    else for (int64_t j = 0; j < used; j++) most[j] = row[j] > most[j] ? row[j] : most[j];
  }
}

/* All threads learn `news`. */
WIDEST void clocks_learn(int32_t *table, int64_t capacity, int64_t used, const int64_t *rows, int64_t first, int64_t n,
                         const int32_t *news) {
  for (int64_t i = 0; i < n; i++) {
    int32_t *row = table + (rows ? rows[i] : first + i) * capacity;
    for (int64_t j = 0; j < used; j++) row[j] = news[j] > row[j] ? news[j] : row[j];
  }
}

/* A barrier: each of the threads learns what any has seen. */
void clocks_join(int32_t *table, int64_t capacity, int64_t used, const int64_t *rows, int64_t first, int64_t n,
                 int32_t *scratch) {
  clocks_most(table, capacity, used, rows, first, n, scratch);
  for (int64_t i = 0; i < n; i++)
    memcpy(table + (rows ? rows[i] : first + i) * capacity, scratch, used * sizeof *scratch);
}

/* The clock of each of 32 threads from `first` on, for itself. */
void clocks_tick(int32_t *table, int64_t capacity, int64_t first, int32_t now) {
  for (int64_t i = first; i < first + 32; i++) table[i * capacity + i] = now;
}
