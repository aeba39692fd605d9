/* Pooled lookups for CPUs: all bags of a batch in all tables in one call, each written where it belongs in one array of float32.
 *
 * A bag is summed in float32, id after id, as torch's EmbeddingBag does: its answer depends on nothing but its own ids and weights. `quantized.py`
 * has the number types.
 */

#include <pthread.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#define INLINE inline __attribute__((always_inline))
#define LINE 64
#define DEPTH 16        /* ids whose rows are asked for ahead: a core keeps some 20 reads of memory in flight */
#define BLOCK 32        /* bags of each table before the next table's: what they write stays in the cache */
#define MOST_THREADS 64
#define HEADER 4        /* bytes of a row's scale and bias */
#define LANES 8
#define MOST_GROUP 8    /* times LANES numbers that are summed at once, in registers */

enum { FP32, FP16, BF16, INT8, INT4 };

typedef float Floats __attribute__((vector_size(4 * LANES)));

typedef struct { /* one lookup; the same for every batch */
    const uint8_t *rows;
    int64_t num_rows;
    int64_t row_bytes;
    int64_t pitch; /* bytes from a row to the next: more than `row_bytes` where rows are kept from straddling lines of the cache */
    int32_t dim;
    int32_t kind;
    int32_t mean;
    int32_t weighted;
} Read;

typedef struct { /* what a batch asks of it */
    const int64_t *ids;     /* rows of the table */
    const int64_t *offsets; /* bag b holds ids [offsets[b], offsets[b + 1]); NULL: one id each */
    const float *weights;   /* of the ids, for a weighted lookup; NULL: all 1 */
    float *out;             /* of bag 0; the next bag's is `stride` numbers on */
    int64_t stride;
} Bags;

static INLINE Floats splat(float number) { return (Floats){number, number, number, number, number, number, number, number}; }

static INLINE Floats multiply_add(Floats a, Floats b, Floats c) {
#ifdef __FMA__
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

static INLINE float half_to_float(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    uint32_t bits;
    float found;
    if (rest >= 0x7c00) bits = 0x7f800000 | (rest & 0x3ff) << 13; /* infinite, or no number */
    else if (rest >= 0x400) bits = (rest << 13) + (112u << 23);
    else {
        found = (float)rest * 0x1p-24f; /* below the least normal number; exact */
        memcpy(&bits, &found, 4);
    }
    bits |= sign;
    memcpy(&found, &bits, 4);
    return found;
}

/* Bytes of LANES numbers. */
static INLINE int64_t width_of(int kind) { return kind == FP32 ? 4 * LANES : kind == INT8 ? LANES : kind == INT4 ? LANES / 2 : 2 * LANES; }

/* LANES numbers as they are stored, without scale and bias. */
static INLINE Floats load(int kind, const uint8_t *from) {
    Floats found;
    if (kind == FP32) {
        memcpy(&found, from, sizeof found);
        return found;
    }
#ifdef __AVX2__
    if (kind == FP16) return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
    if (kind == BF16) return (Floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from)), 16);
    if (kind == INT8) return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from)));
    int32_t packed;
    memcpy(&packed, from, sizeof packed);
    const __m256i shifted = _mm256_srlv_epi32(_mm256_set1_epi32(packed), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    return (Floats)_mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(15)));
#else
    for (int lane = 0; lane < LANES; lane++) {
        uint16_t half;
        if (kind == FP16 || kind == BF16) memcpy(&half, from + 2 * lane, 2);
        if (kind == FP16) found[lane] = half_to_float(half);
        if (kind == BF16) {
            const uint32_t bits = (uint32_t)half << 16;
            float number;
            memcpy(&number, &bits, 4);
            found[lane] = number;
        }
        if (kind == INT8) found[lane] = from[lane];
        if (kind == INT4) found[lane] = from[lane / 2] >> 4 * (lane % 2) & 15;
    }
    return found;
#endif
}

static INLINE float read_half(const uint8_t *from) {
    uint16_t half;
    memcpy(&half, from, 2);
#ifdef __F16C__
    return _cvtsh_ss(half);
#else
    return half_to_float(half);
#endif
}

/* 1 over the sum of a bag's weights, 0 where that is 0: in float64, as in training. */
static double factor_of(const float *weights, int64_t start, int64_t end) {
    double sum = weights ? 0 : (double)(end - start);
    for (int64_t i = start; weights && i < end; i++) sum += weights[i];
    return sum == 0 ? 0 : 1 / sum;
}

static INLINE const uint8_t *row_of(const Read *read, int64_t id) { return read->rows + id * read->pitch; }

static INLINE void prefetch(const Read *read, int64_t id) {
    const uintptr_t row = (uintptr_t)read->rows + (uintptr_t)id * (uintptr_t)read->pitch; /* any number: nothing was checked yet */
    for (int64_t at = 0; at < read->row_bytes; at += LINE) __builtin_prefetch((const void *)(row + (uintptr_t)at));
    __builtin_prefetch((const void *)(row + (uintptr_t)read->row_bytes - 1));
}

/* The numbers [at, at + count * LANES) of one bag, those beyond the row left out.
 *
 * Those of the row `DEPTH` ids on are asked for line by line between the numbers that are added: all at once they would wait for each other.
 */
static INLINE void pool_group(int kind, int count, const Read *read, const Bags *bags, int64_t start, int64_t end, int64_t last, int32_t at, float *out) {
    Floats sums[MOST_GROUP] = {0};
    const int64_t width = width_of(kind), head = kind == INT8 || kind == INT4 ? HEADER : 0, place = head + at / LANES * width;
    const uint8_t *beyond = row_of(read, read->num_rows) - read->pitch + read->row_bytes;
    const double factor = read->mean && read->weighted ? factor_of(bags->weights, start, end) : 1;
    for (int64_t i = start; i < end; i++) {
        const uint8_t *row = row_of(read, bags->ids[i]), *from = row + place;
        const uint8_t *ahead = row_of(read, bags->ids[i + DEPTH < last ? i + DEPTH : i]) + place - head;
        uint8_t copy[4 * LANES * MOST_GROUP];
        __builtin_prefetch(ahead + head + count * width - 1);
        if (__builtin_expect(from + count * width > beyond, 0)) { /* the last lanes would read beyond the table: those of its last rows */
            memcpy(copy, from, (size_t)(beyond - from));
            from = copy;
        }
        const Floats weight = splat(read->weighted ? (float)((bags->weights ? bags->weights[i] : 1) * factor) : 1);
        if (head) {
            const Floats scale = splat(read_half(row)), bias = splat(read_half(row + 2));
            for (int k = 0; k < count; k++) {
                if (k * width % LINE == 0) __builtin_prefetch(ahead + k * width);
                sums[k] = multiply_add(weight, multiply_add(scale, load(kind, from + k * width), bias), sums[k]);
            }
        } else
            for (int k = 0; k < count; k++) {
                if (k * width % LINE == 0) __builtin_prefetch(ahead + k * width);
                sums[k] = multiply_add(weight, load(kind, from + k * width), sums[k]);
            }
    }
    if (read->mean && !read->weighted && end - start > 1)
        for (int k = 0; k < count; k++) sums[k] /= splat((float)(end - start));
    const int64_t left = read->dim - at;
    if (left >= count * LANES) memcpy(out + at, sums, sizeof *sums * (size_t)count);
    else memcpy(out + at, sums, sizeof *out * (size_t)left);
}

static INLINE void pool_bag(int kind, const Read *read, const Bags *bags, int64_t start, int64_t end, int64_t last, float *out) {
    for (int32_t at = 0; at < read->dim;) {
        const int32_t left = (read->dim - at + LANES - 1) / LANES;
        if (left >= 8) pool_group(kind, 8, read, bags, start, end, last, at, out), at += 8 * LANES;
        else if (left >= 4) pool_group(kind, 4, read, bags, start, end, last, at, out), at += 4 * LANES;
        else if (left >= 2) pool_group(kind, 2, read, bags, start, end, last, at, out), at += 2 * LANES;
        else pool_group(kind, 1, read, bags, start, end, last, at, out), at += LANES;
    }
}

/* Bags [first, stop) of a lookup; 0 where one of their ids is no row of the table. */
static INLINE int pool_bags(int kind, const Read *read, const Bags *bags, int64_t first, int64_t stop, int64_t last) {
    const int64_t *offsets = bags->offsets;
    const int64_t from = offsets ? offsets[first] : first, to = offsets ? offsets[stop] : stop;
    uint64_t greatest = 0;
    for (int64_t i = from; i < to; i++) greatest = (uint64_t)bags->ids[i] > greatest ? (uint64_t)bags->ids[i] : greatest;
    if (to > from && greatest >= (uint64_t)read->num_rows) return 0;
    for (int64_t bag = first; bag < stop; bag++) {
        const int64_t start = offsets ? offsets[bag] : bag, end = offsets ? offsets[bag + 1] : bag + 1;
        pool_bag(kind, read, bags, start, end, last, bags->out + bag * bags->stride);
    }
    return 1;
}

static int pool_any(const Read *read, const Bags *bags, int64_t first, int64_t stop, int64_t last) {
    switch (read->kind) {
    case FP32: return pool_bags(FP32, read, bags, first, stop, last);
    case FP16: return pool_bags(FP16, read, bags, first, stop, last);
    case BF16: return pool_bags(BF16, read, bags, first, stop, last);
    case INT8: return pool_bags(INT8, read, bags, first, stop, last);
    default: return pool_bags(INT4, read, bags, first, stop, last);
    }
}

typedef struct {
    const Read *reads;
    const Bags *bags;
    int32_t num_reads;
    int64_t num_bags;
    int64_t next;  /* block that no thread has taken */
    int32_t fault; /* a lookup that was asked for a row that its table lacks; -1: none */
} Work;

static void *run(void *given) {
    Work *work = given;
    for (;;) {
        const int64_t first = BLOCK * __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED);
        if (first >= work->num_bags) return NULL;
        const int64_t stop = first + BLOCK < work->num_bags ? first + BLOCK : work->num_bags;
        for (int32_t r = 0; r < work->num_reads; r++) { /* the first rows of every table at once */
            const Bags *bags = work->bags + r;
            const int64_t from = bags->offsets ? bags->offsets[first] : first, to = bags->offsets ? bags->offsets[stop] : stop;
            for (int64_t i = from; i < to && i < from + DEPTH; i++) prefetch(work->reads + r, bags->ids[i]);
        }
        for (int32_t r = 0; r < work->num_reads; r++) {
            const int64_t last = work->bags[r].offsets ? work->bags[r].offsets[stop] : stop;
            if (!pool_any(work->reads + r, work->bags + r, first, stop, last)) __atomic_store_n(&work->fault, r, __ATOMIC_RELAXED);
        }
    }
}

/* The bags of all lookups, each of `num_bags`; blocks of bags are shared out among `num_threads` threads.
 *
 * Returns a lookup that has an id that is no row of its table, or -1.
 */
int32_t emberline_lookup_pool(const Read *reads, const Bags *bags, int32_t num_reads, int64_t num_bags, int32_t num_threads) {
    pthread_t threads[MOST_THREADS];
    int started[MOST_THREADS];
    Work work = {reads, bags, num_reads, num_bags, 0, -1};
    if (num_threads > MOST_THREADS) num_threads = MOST_THREADS;
    for (int32_t t = 1; t < num_threads; t++) started[t] = pthread_create(&threads[t], NULL, run, &work) == 0;
    run(&work);
    for (int32_t t = 1; t < num_threads; t++)
        if (started[t]) pthread_join(threads[t], NULL);
    return work.fault;
}
