/* The id index's build and lookup for CPUs. `lines.py` has the layout, and the same two in torch operators, which give the same bits. */

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define SLOTS 5
#define DEPTH 64 /* ids whose lines are asked for ahead: a core keeps some 20 reads of memory in flight */
#define LAG 16   /* ids between a look at the home line, which may ask for the next line too, and the answer */
#define MOST_THREADS 64
#define FREE INT64_MAX
#define FACTOR 0xD6E8FEB86659FD93u

typedef struct {
    int64_t ids[SLOTS];
    int32_t rows[SLOTS + 1]; /* the last is -1 - reach: negative, so it is also the answer "not here" */
} Line;

static inline uint64_t home_of(int64_t id, uint64_t num_homes, uint64_t seed) {
    uint64_t mixed = (uint64_t)id ^ seed;
    mixed = (mixed ^ mixed >> 32) * FACTOR;
    mixed = (mixed ^ mixed >> 32) * FACTOR;
    return (mixed >> 32) * num_homes >> 32;
}

/* The id's row, or what the line says of its reach. No branch depends on where in the line the id is, since nothing can foretell that. */
static inline int32_t find(const Line *line, int64_t id) {
    unsigned hits = 1u << SLOTS;
    for (int slot = 0; slot < SLOTS; slot++) hits |= (unsigned)(line->ids[slot] == id) << slot;
    return line->rows[__builtin_ctz(hits)];
}

static int32_t find_beyond(const Line *home, int64_t id, int32_t reach) {
    for (int32_t step = 1; step <= reach; step++) {
        int32_t row = find(home + step, id);
        if (row >= 0) return row;
    }
    return -1;
}

static int put(Line *line, int64_t id, int64_t row) {
    for (int slot = 0; slot < SLOTS; slot++)
        if (line->rows[slot] < 0) {
            line->ids[slot] = id;
            line->rows[slot] = (int32_t)row;
            return 1;
        }
    return 0;
}

/* Fill lines [num_homes + most_reach] with ids and rows [num_ids]; `left` is room for num_ids numbers. The reach, or -1 where it would be too long. */
int32_t emberline_remap_build(const int64_t *ids, const int64_t *rows, int64_t num_ids, Line *lines, uint64_t num_homes, uint64_t seed,
                              int32_t most_reach, int64_t *left) {
    for (uint64_t place = 0; place < num_homes + (uint64_t)most_reach; place++) {
        for (int slot = 0; slot < SLOTS; slot++) lines[place].ids[slot] = FREE;
        for (int slot = 0; slot <= SLOTS; slot++) lines[place].rows[slot] = -1;
    }
    int64_t num_left = 0;
    for (int64_t i = 0; i < num_ids; i++) {
        if (i + DEPTH < num_ids) __builtin_prefetch(lines + home_of(ids[i + DEPTH], num_homes, seed), 1);
        if (!put(lines + home_of(ids[i], num_homes, seed), ids[i], rows[i])) left[num_left++] = i;
    }
    int32_t reach = 0;
    while (num_left > 0) {
        if (++reach > most_reach) return -1;
        int64_t still_left = 0;
        for (int64_t k = 0; k < num_left; k++) {
            int64_t i = left[k];
            Line *home = lines + home_of(ids[i], num_homes, seed);
            home->rows[SLOTS] = -1 - reach;
            if (!put(home + reach, ids[i], rows[i])) left[still_left++] = i;
        }
        num_left = still_left;
    }
    return reach;
}

typedef struct {
    const int64_t *ids;
    int64_t num_ids;
    const Line *lines;
    uint64_t num_homes, seed;
    int64_t fallback;
    int64_t *rows;
    uint8_t *known;
} Work;

static void look_up(const Work *work) {
    const int64_t *ids = work->ids, num_ids = work->num_ids, fallback = work->fallback;
    const Line *asked[DEPTH];
    int32_t found[DEPTH];
    const int64_t depth = num_ids < DEPTH ? num_ids : DEPTH, lag = depth < DEPTH ? 0 : LAG;
    for (int64_t i = -depth; i < num_ids; i++) {
        const int64_t look = i + lag, ask = i + depth;
        if (look >= 0 && look < num_ids) {
            const Line *home = asked[look & (DEPTH - 1)];
            int32_t row = find(home, ids[look]);
            found[look & (DEPTH - 1)] = row;
            __builtin_prefetch(home + (row < -1));
        }
        if (i >= 0) {
            int32_t row = found[i & (DEPTH - 1)];
            if (__builtin_expect(row < -1, 0)) row = find_beyond(asked[i & (DEPTH - 1)], ids[i], -1 - row);
            const int64_t unknown = -(int64_t)(row < 0);
            work->rows[i] = (fallback & unknown) | ((int64_t)row & ~unknown);
            work->known[i] = row >= 0;
        }
        if (ask < num_ids) {
            asked[ask & (DEPTH - 1)] = work->lines + home_of(ids[ask], work->num_homes, work->seed);
            __builtin_prefetch(asked[ask & (DEPTH - 1)]);
        }
    }
}

static void *run(void *work) {
    look_up(work);
    return NULL;
}

/* Rows and known [num_ids] of ids; `fallback` is the row of those that are not known. The ids are shared out among `num_threads` threads. */
void emberline_remap_lookup(const int64_t *ids, int64_t num_ids, const Line *lines, uint64_t num_homes, uint64_t seed, int64_t fallback,
                            int64_t *rows, uint8_t *known, int32_t num_threads) {
    pthread_t threads[MOST_THREADS];
    Work parts[MOST_THREADS];
    int started[MOST_THREADS];
    if (num_threads > MOST_THREADS) num_threads = MOST_THREADS;
    for (int32_t part = num_threads - 1; part >= 0; part--) {
        const int64_t start = num_ids * part / num_threads, end = num_ids * (part + 1) / num_threads;
        parts[part] = (Work){ids + start, end - start, lines, num_homes, seed, fallback, rows + start, known + start};
        started[part] = part > 0 && pthread_create(&threads[part], NULL, run, &parts[part]) == 0;
        if (!started[part]) look_up(&parts[part]);
    }
    for (int32_t part = 1; part < num_threads; part++)
        if (started[part]) pthread_join(threads[part], NULL);
}
