/* Keys of tables that grow, on the CPU: an open-addressing hash of slots, and first vectors. `keys.py` has the same in Python, with the same answers.

   A key lies at its home slot or after it, with no free slot in between. What is taken out leaves no mark: keys after it move up. */

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DEPTH 32 /* keys whose home slots are asked for ahead */
#define RING (2 * DEPTH)
#define TILE 8 /* numbers added at once */
#define TILES 8
#define MOST_THREADS 64
#define FRESH UINT32_MAX /* the step of a key that had no row before this batch, while it lasts; the count of a key that was just admitted */
#define DIGIT 16
#if defined(__x86_64__) && defined(__GLIBC__)
#define FAST __attribute__((target_clones("avx2", "default"))) /* as the processor has it; the same numbers */
#else
#define FAST
#endif
#define SIGN ((uint64_t)1 << 63)

typedef struct {
    int64_t key;
    uint32_t row; /* and 1; 0: the slot is free */
    uint32_t step;
} Slot;

typedef struct {
    Slot *slots;
    uint64_t num_slots, limit; /* of keys, before there must be more slots */
    uint64_t size;
    uint32_t *free; /* rows that were given back; the last goes first */
    uint64_t num_free, next_row;
} Keys;

static inline uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static inline uint64_t home_of(const Keys *keys, int64_t key) {
    return (uint64_t)((unsigned __int128)mix((uint64_t)key + 0x9E3779B97F4A7C15u) * keys->num_slots >> 64);
}

static inline uint64_t next_slot(const Keys *keys, uint64_t place) {
    return place + 1 == keys->num_slots ? 0 : place + 1;
}

/* The key's slot, or the free one where it would go; `place` is its home. */
static inline Slot *slot_from(const Keys *keys, int64_t key, uint64_t place) {
    while (keys->slots[place].row && keys->slots[place].key != key) place = next_slot(keys, place);
    return keys->slots + place;
}

static inline Slot *slot_of(const Keys *keys, int64_t key) { return slot_from(keys, key, home_of(keys, key)); }

/* A key's home, asked for; a probe is 3 slots long on average, and may need the line behind it. */
static inline uint64_t home_ahead(const Keys *keys, int64_t key) {
    const uint64_t home = home_of(keys, key);
    __builtin_prefetch(keys->slots + home, 1);
    __builtin_prefetch(keys->slots + home + 3, 1);
    return home;
}

static inline void ask(const Keys *keys, const int64_t *wanted, int64_t num, int64_t place) {
    if (place < num) __builtin_prefetch(keys->slots + home_of(keys, wanted[place]), 1);
}

static inline uint32_t take_row(Keys *keys) {
    return keys->num_free ? keys->free[--keys->num_free] : (uint32_t)keys->next_row++;
}

typedef struct {
    const Keys *keys;
    const int64_t *wanted;
    int64_t num, first, missing;
    int64_t *rows;
} Work;

static void *find(void *argument) {
    const Work *work = argument;
    uint64_t homes[DEPTH]; /* of the keys ahead, so that each is hashed once */
    for (int64_t i = 0; i < DEPTH && i < work->num; i++) homes[i] = home_ahead(work->keys, work->wanted[i]);
    for (int64_t i = 0; i < work->num; i++) {
        const uint64_t home = homes[i % DEPTH];
        if (i + DEPTH < work->num) homes[i % DEPTH] = home_ahead(work->keys, work->wanted[i + DEPTH]);
        const uint32_t row = slot_from(work->keys, work->wanted[i], home)->row;
        work->rows[i] = row ? work->first + (int64_t)row - 1 : work->missing;
    }
    return NULL;
}

/* Rows [num], each and `first`, of keys; `missing` where there is none. */
void emberline_keys_find(const Keys *keys, const int64_t *wanted, int64_t num, int64_t first, int64_t missing, int64_t *rows, int32_t num_threads) {
    pthread_t threads[MOST_THREADS];
    Work parts[MOST_THREADS];
    int started[MOST_THREADS];
    if (num_threads > MOST_THREADS) num_threads = MOST_THREADS;
    for (int32_t part = num_threads - 1; part >= 0; part--) {
        const int64_t start = num * part / num_threads, end = num * (part + 1) / num_threads;
        parts[part] = (Work){keys, wanted + start, end - start, first, missing, rows + start};
        started[part] = part > 0 && pthread_create(&threads[part], NULL, find, &parts[part]) == 0;
        if (!started[part]) find(&parts[part]);
    }
    for (int32_t part = 1; part < num_threads; part++)
        if (started[part]) pthread_join(threads[part], NULL);
}

typedef struct {
    const Keys *keys;
    const float *rows, *unknown; /* vectors of all rows, and of keys that have none */
    int64_t dim, column;         /* where the vectors of this read's bags begin in a row of the answer */
} Bags;

typedef struct {
    const Bags *reads;
    int64_t num_rows, width; /* of the answer */
    const int64_t *wanted, *offsets;
    float *vectors;
    int64_t first, end; /* of all bags, read by read */
} Pooling;

/* The vector of a key, asked for. */
static inline const float *vector_ahead(const Bags *read, int64_t key, uint64_t home) {
    const uint32_t row = slot_from(read->keys, key, home)->row;
    const float *vector = row ? read->rows + ((int64_t)row - 1) * read->dim : read->unknown;
    __builtin_prefetch(vector);
    return vector;
}

typedef float Tile __attribute__((vector_size(4 * TILE)));

/* Add `num` vectors to `tiles` tiles of a bag's sum, or begin them with 0. */
static inline __attribute__((always_inline)) void add_tiles(float *sum, const float *const *vectors, uint64_t start, uint64_t num, int64_t column, int begins,
                                                            const int tiles) {
    Tile totals[TILES] = {{0}}, vector;
    if (!begins) memcpy(totals, sum + column, sizeof(Tile) * (size_t)tiles);
    for (uint64_t i = start; i < start + num; i++)
        for (int tile = 0; tile < tiles; tile++) {
            memcpy(&vector, vectors[i % RING] + column + tile * TILE, sizeof vector);
            totals[tile] += vector;
        }
    memcpy(sum + column, totals, sizeof(Tile) * (size_t)tiles);
}

/* Add `num` vectors to a bag's sum, or begin it with 0. */
static inline __attribute__((always_inline)) void add(float *sum, const float *const *vectors, int64_t start, int64_t num, int64_t dim, int begins) {
    int64_t column = 0;
    for (; column + TILES * TILE <= dim; column += TILES * TILE) add_tiles(sum, vectors, (uint64_t)start, (uint64_t)num, column, begins, TILES);
    for (; column + TILE <= dim; column += TILE) add_tiles(sum, vectors, (uint64_t)start, (uint64_t)num, column, begins, 1);
    for (; column < dim; column++) {
        float total = begins ? 0.0f : sum[column];
        for (int64_t i = start; i < start + num; i++) total += vectors[i % RING][column];
        sum[column] = total;
    }
}

/* Rows `row` to `end` of a read, whose bags `offsets` bounds. Slots are asked for DEPTH keys before they are read, vectors DEPTH before they are added. */
FAST static void pool_read(const Bags *read, const int64_t *wanted, const int64_t *offsets, int64_t row, int64_t end, float *vectors, int64_t width) {
    const int64_t stop = offsets[end];
    uint64_t homes[DEPTH];
    const float *found[RING];
    int64_t next = offsets[row]; /* the key that is found next */
    for (int64_t i = next; i < next + DEPTH && i < stop; i++) homes[i % DEPTH] = home_ahead(read->keys, wanted[i]);
    for (; row < end; row++) {
        int64_t i = offsets[row];
        do { /* of long bags so many keys at a time */
            const int64_t num = offsets[row + 1] - i < DEPTH ? offsets[row + 1] - i : DEPTH;
            for (; next < i + num + DEPTH && next < stop; next++) {
                found[next % RING] = vector_ahead(read, wanted[next], homes[next % DEPTH]);
                if (next + DEPTH < stop) homes[next % DEPTH] = home_ahead(read->keys, wanted[next + DEPTH]);
            }
            add(vectors + row * width, found, i, num, read->dim, i == offsets[row]);
            i += num;
        } while (i < offsets[row + 1]);
    }
}

static void *pool(void *argument) {
    const Pooling *work = argument;
    for (int64_t bag = work->first; bag < work->end;) {
        const int64_t read = bag / work->num_rows, start = read * work->num_rows;
        const int64_t end = work->end < start + work->num_rows ? work->end : start + work->num_rows;
        const Bags *own = work->reads + read;
        pool_read(own, work->wanted, work->offsets + start, bag - start, end - start, work->vectors + own->column, work->width);
        bag = end;
    }
    return NULL;
}

/* Bags of all reads, whose keys lie read by read, row by row: sums of their vectors side by side [num_rows, width], zeros for empty bags. */
void emberline_keys_pool(const Bags *reads, int64_t num_reads, int64_t num_rows, int64_t width, const int64_t *wanted, const int64_t *offsets,
                         float *vectors, int32_t num_threads) {
    pthread_t threads[MOST_THREADS];
    Pooling parts[MOST_THREADS];
    int started[MOST_THREADS];
    const int64_t num = num_reads * num_rows;
    if (num_threads > MOST_THREADS) num_threads = MOST_THREADS;
    for (int32_t part = num_threads - 1; part >= 0; part--) {
        parts[part] = (Pooling){reads, num_rows, width, wanted, offsets, vectors, num * part / num_threads, num * (part + 1) / num_threads};
        started[part] = part > 0 && pthread_create(&threads[part], NULL, pool, &parts[part]) == 0;
        if (!started[part]) pool(&parts[part]);
    }
    for (int32_t part = 1; part < num_threads; part++)
        if (started[part]) pthread_join(threads[part], NULL);
}

/* Find keys from `start` on, or give rows to them; those that are new are listed. Where it ended: before `num` if there must be more slots.
   New keys are left as FRESH, for `settle`. `counts`: how many are new so far, how many ids had a row before. */
int64_t emberline_keys_read(Keys *keys, const int64_t *wanted, int64_t start, int64_t num, uint32_t step, int64_t *rows, int64_t *new_keys,
                            int64_t *new_rows, int64_t *counts) {
    int64_t num_new = counts[0], num_hits = counts[1], i = start;
    uint64_t homes[DEPTH];
    for (int64_t j = start; j < start + DEPTH && j < num; j++) homes[j % DEPTH] = home_ahead(keys, wanted[j]);
    for (; i < num; i++) {
        const uint64_t home = homes[i % DEPTH];
        if (i + DEPTH < num) homes[i % DEPTH] = home_ahead(keys, wanted[i + DEPTH]);
        Slot *slot = slot_from(keys, wanted[i], home);
        if (!slot->row) {
            if (keys->size >= keys->limit) break;
            keys->size++;
            *slot = (Slot){wanted[i], take_row(keys) + 1, FRESH};
            new_keys[num_new] = wanted[i];
            new_rows[num_new++] = (int64_t)slot->row - 1;
        } else if (slot->step != FRESH) {
            slot->step = step;
            num_hits++;
        }
        rows[i] = (int64_t)slot->row - 1;
    }
    counts[0] = num_new, counts[1] = num_hits;
    return i;
}

/* Mark keys that are there as read in a step. */
void emberline_keys_settle(Keys *keys, const int64_t *wanted, int64_t num, uint32_t step) {
    for (int64_t i = 0; i < num; i++) {
        ask(keys, wanted, num, i + DEPTH / 2);
        slot_of(keys, wanted[i])->step = step;
    }
}

/* Give rows to distinct keys that have none; there are slots for them. */
void emberline_keys_add(Keys *keys, const int64_t *wanted, int64_t num, const int64_t *steps, int64_t *rows) {
    for (int64_t i = 0; i < num; i++) {
        ask(keys, wanted, num, i + DEPTH / 2);
        const uint32_t row = take_row(keys);
        *slot_of(keys, wanted[i]) = (Slot){wanted[i], row + 1, (uint32_t)steps[i]};
        rows[i] = row;
    }
    keys->size += (uint64_t)num;
}

static void vacate(Keys *keys, uint64_t hole) {
    uint64_t place = hole;
    for (;;) {
        place = next_slot(keys, place);
        Slot *slot = keys->slots + place;
        if (!slot->row) break;
        const uint64_t home = home_of(keys, slot->key), wrap = keys->num_slots;
        const uint64_t from_home = place >= home ? place - home : place + wrap - home, from_hole = place >= hole ? place - hole : place + wrap - hole;
        if (from_home >= from_hole) keys->slots[hole] = *slot, hole = place;
    }
    keys->slots[hole] = (Slot){0, 0, 0};
}

/* Take distinct keys out, all of which are there; their rows, which are given again where `gives` is not 0. */
void emberline_keys_remove(Keys *keys, const int64_t *wanted, int64_t num, int64_t *rows, int32_t gives) {
    for (int64_t i = 0; i < num; i++) {
        ask(keys, wanted, num, i + DEPTH / 2);
        Slot *slot = slot_of(keys, wanted[i]);
        rows[i] = (int64_t)slot->row - 1;
        if (gives) keys->free[keys->num_free++] = slot->row - 1;
        vacate(keys, (uint64_t)(slot - keys->slots));
    }
    keys->size -= (uint64_t)num;
}

/* Copy all keys into slots that are all free. */
void emberline_keys_rehash(const Slot *slots, uint64_t num_slots, Keys *into) {
    for (uint64_t i = 0; i < num_slots; i++) {
        if (i + DEPTH < num_slots && slots[i + DEPTH].row) __builtin_prefetch(into->slots + home_of(into, slots[i + DEPTH].key), 1);
        if (slots[i].row) *slot_of(into, slots[i].key) = slots[i];
    }
}

/* All keys, rows and steps [size]. */
void emberline_keys_items(const Keys *keys, int64_t *found, int64_t *rows, int64_t *steps) {
    int64_t num = 0;
    for (uint64_t i = 0; i < keys->num_slots; i++)
        if (keys->slots[i].row) {
            found[num] = keys->slots[i].key;
            rows[num] = (int64_t)keys->slots[i].row - 1;
            steps[num++] = keys->slots[i].step;
        }
}

/* What orders keys: the score, then the key, both signed. */
static inline unsigned __int128 rank_of(const Slot *slot, const int64_t *scores) {
    const int64_t score = scores ? scores[slot->row - 1] : (int64_t)slot->step;
    return (unsigned __int128)((uint64_t)score ^ SIGN) << 64 | ((uint64_t)slot->key ^ SIGN);
}

static inline int is_free(const Slot *slot, const uint8_t *kept) {
    return slot->row && !(kept && kept[slot->row - 1]);
}

/* The `wanted` keys of the lowest score, of equal ones the smallest first, but none whose row is `kept`: found digit by digit, without a copy.
   `scores` by row; NULL: the steps. `counts` has room for 2^DIGIT numbers. How many there are, at most `wanted`. */
int64_t emberline_keys_lowest(const Keys *keys, const int64_t *scores, const uint8_t *kept, int64_t wanted, int64_t *counts, int64_t *found) {
    unsigned __int128 least = ~(unsigned __int128)0, most = 0;
    int64_t num = 0;
    for (uint64_t i = 0; i < keys->num_slots; i++)
        if (is_free(keys->slots + i, kept)) {
            const unsigned __int128 rank = rank_of(keys->slots + i, scores);
            if (rank < least) least = rank;
            if (rank > most) most = rank;
            num++;
        }
    if (wanted > num) wanted = num;
    if (wanted <= 0) return 0;
    int shift = 0; /* below the highest bit in which any two differ */
    while (shift < 128 && (least >> shift) != (most >> shift)) shift++;
    unsigned __int128 bound = most; /* the last that goes */
    unsigned __int128 prefix = shift < 128 ? most >> shift : 0;
    int64_t left = wanted;
    while (shift > 0) {
        const int width = shift < DIGIT ? shift : DIGIT;
        memset(counts, 0, sizeof(int64_t) << width);
        for (uint64_t i = 0; i < keys->num_slots; i++)
            if (is_free(keys->slots + i, kept)) {
                const unsigned __int128 rank = rank_of(keys->slots + i, scores);
                if ((shift < 128 ? rank >> shift : 0) == prefix) counts[(uint64_t)(rank >> (shift - width)) & ((1u << width) - 1)]++;
            }
        uint64_t digit = 0;
        while (counts[digit] < left) left -= counts[digit++];
        shift -= width;
        prefix = prefix << width | digit;
        if (counts[digit] == left) break;
    }
    if (shift < 128) bound = (prefix << shift) | (((unsigned __int128)1 << shift) - 1);
    int64_t taken = 0;
    for (uint64_t i = 0; i < keys->num_slots; i++)
        if (is_free(keys->slots + i, kept) && rank_of(keys->slots + i, scores) <= bound) found[taken++] = keys->slots[i].key;
    return taken;
}

/* Count ids from `start` on; whether each is admitted. `admitted` [num] lists those that were just now, which stay as FRESH; `num_admitted` is how many.
   Where it ended: before `num` if there must be more slots, or if `capacity` ids are counted and one more would be. */
int64_t emberline_keys_count(Keys *keys, const int64_t *wanted, int64_t start, int64_t num, uint32_t threshold, uint64_t capacity, uint8_t *flags,
                             int64_t *admitted, int64_t *num_admitted) {
    int64_t i = start;
    for (int64_t j = start; j < start + DEPTH; j++) ask(keys, wanted, num, j);
    for (; i < num; i++) {
        ask(keys, wanted, num, i + DEPTH);
        Slot *slot = slot_of(keys, wanted[i]);
        if (!slot->row) {
            if (keys->size >= keys->limit || (threshold > 1 && keys->size - (uint64_t)*num_admitted >= capacity)) break;
            keys->size++;
            *slot = (Slot){wanted[i], 1, 0};
        }
        if (slot->step != FRESH && ++slot->step >= threshold) {
            slot->step = FRESH;
            admitted[(*num_admitted)++] = wanted[i];
        }
        flags[i] = slot->step == FRESH;
    }
    return i;
}

typedef struct {
    int32_t is_normal;
    double first, last;       /* the part of (0, 1) that is drawn from */
    double centre, scale;     /* what is drawn, times scale, and centre */
    double lower, upper;      /* bounds */
} Spread;

static double logarithm(double x) {
    union { double value; uint64_t bits; } number = {x};
    int64_t exponent = (int64_t)(number.bits >> 52) - 1022;
    number.bits = (number.bits & 0xFFFFFFFFFFFFFu) | (uint64_t)1022 << 52;
    double mantissa = number.value;
    if (mantissa < 0.70710678118654757) mantissa = 2.0 * mantissa, exponent--;
    const double s = (mantissa - 1.0) / (mantissa + 1.0), squared = s * s;
    double total = 0.0;
    for (int power = 21; power > 0; power -= 2) total = total * squared + 1.0 / power;
    return (double)exponent * 0.69314718055994529 + 2.0 * s * total;
}

static double ratio(const double *polynomials, double x) {
    double above = polynomials[7], below = polynomials[15];
    for (int power = 6; power >= 0; power--) above = above * x + polynomials[power], below = below * x + polynomials[8 + power];
    return above / below;
}

static double normal(double share, const double *polynomials) {
    const double offset = share - 0.5, below = share < 1.0 - share ? share : 1.0 - share;
    if ((offset < 0 ? -offset : offset) <= 0.425) return offset * ratio(polynomials, 0.180625 - offset * offset);
    const double squared = -logarithm(below < 0x1p-1000 ? 0x1p-1000 : below);
    const double root = __builtin_sqrt(squared);
    const double tail = root <= 5.0 ? ratio(polynomials + 16, root - 1.6) : ratio(polynomials + 32, root - 5.0);
    return offset < 0 ? -tail : tail;
}

/* First vectors [num, dim]; see `initial_values.py`, which gives the polynomials. */
void emberline_keys_vectors(const int64_t *keys, int64_t num, int64_t dim, uint64_t stream, const Spread *spread, const double *polynomials,
                            float *vectors) {
    const double width = spread->last - spread->first;
    for (int64_t i = 0; i < num; i++) {
        const uint64_t start = mix(mix((uint64_t)keys[i] ^ stream) + stream);
        float *vector = vectors + i * dim;
        for (int64_t column = 0; column < dim; column++) {
            const uint64_t bits = mix(start + (uint64_t)(column + 1) * 0x9E3779B97F4A7C15u);
            const double share = ((double)(bits >> 11) + 0.5) * 0x1p-53;
            double drawn = spread->first + share * width;
            if (spread->is_normal) {
                drawn = spread->centre + spread->scale * normal(drawn, polynomials);
                drawn = drawn < spread->lower ? spread->lower : drawn > spread->upper ? spread->upper : drawn;
            }
            vector[column] = (float)drawn;
        }
    }
}
