/* Requests as Python has them, straight to looked-up rows: one call checks many requests, maps their raw ids, looks all up and pools them.
 *
 * A request with anything out of the ordinary (another type or shape, a mistake, ids that the model refuses) is left alone: `direct.py` says what
 * becomes of it. Rows are pooled by `kernel.c`, and raw ids found by the id index's kernel, both by address.
 *
 * Of Python only functions of its stable ABI (3.11) are called; they are declared here, so that no headers are needed where this is compiled.
 */

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct object PyObject;
typedef struct thread PyThreadState;
typedef ptrdiff_t Py_ssize_t;

typedef struct {
    void *buf;
    PyObject *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
} Py_buffer;

typedef struct {
    const char *name;
    PyObject *(*call)(PyObject *, PyObject *const *, Py_ssize_t);
    int flags;
    const char *doc;
} PyMethodDef;

#define METH_FASTCALL 0x0080
#define PyBUF_ROWS_AND_FORMAT (0x0008 | 0x0004) /* PyBUF_ND | PyBUF_FORMAT: without gaps, and of which type */

int PyObject_GetBuffer(PyObject *, Py_buffer *, int);
void PyBuffer_Release(Py_buffer *);
PyObject *PyObject_Type(PyObject *);
PyObject *PyObject_GetAttr(PyObject *, PyObject *);
PyObject *PyObject_CallFunctionObjArgs(PyObject *, ...);
PyObject *PyObject_CallMethodObjArgs(PyObject *, PyObject *, ...);
PyObject *PySequence_GetItem(PyObject *, Py_ssize_t);
Py_ssize_t PySequence_Size(PyObject *);
PyObject *PyTuple_GetItem(PyObject *, Py_ssize_t);
PyObject *PyTuple_New(Py_ssize_t);
int PyTuple_SetItem(PyObject *, Py_ssize_t, PyObject *);
PyObject *PyBytes_FromStringAndSize(const char *, Py_ssize_t);
char *PyBytes_AsString(PyObject *);
Py_ssize_t PyBytes_Size(PyObject *);
PyObject *PyLong_FromLongLong(long long);
long long PyLong_AsLongLong(PyObject *);
void *PyLong_AsVoidPtr(PyObject *);
PyObject *PyErr_Occurred(void);
PyObject *PyErr_NoMemory(void);
void PyErr_Clear(void);
PyObject *PyCFunction_NewEx(PyMethodDef *, PyObject *, PyObject *);
PyThreadState *PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState *);
void Py_IncRef(PyObject *);
void Py_DecRef(PyObject *);

#define MOST_THREADS 64
#define NO_BOUND UINT64_MAX
#define WORTH_LETTING_GO 512 /* ids and bags in all: what is less takes a few microseconds, and to get the lock back may take milliseconds */

typedef struct { /* `Bags` of `kernel.c` */
    const int64_t *ids, *offsets;
    const float *weights;
    float *out;
    int64_t stride;
} Bags;

typedef int32_t Pool(const void *reads, const Bags *bags, int32_t num_reads, int64_t num_bags, int32_t num_threads);
typedef void Remap(const int64_t *ids, int64_t num_ids, const void *lines, uint64_t num_homes, uint64_t seed, int64_t fallback, int64_t *rows,
                   uint8_t *known, int32_t num_threads);

typedef struct {
    uint64_t bound; /* the greatest id; NO_BOUND: any */
    int64_t most;   /* ids of a bag */
    int64_t oov;    /* the row of ids beyond the bound; -1: there is none */
} Feature;

enum { READ_FALLBACK, REFUSE, ASK };

typedef struct { /* the raw ids of a feature, as a table has them */
    const void *lines;
    uint64_t num_homes, seed;
    int64_t fallback;
    PyObject *rows_of; /* the rows of ids without one of their own, as bytes; for ASK */
    int32_t feature, unknown;
} Map;

typedef struct { /* where a lookup gets its rows, and leaves its vectors */
    int32_t feature, map, column; /* map: -1 where ids are rows */
} Place;

typedef struct { /* numbers of a request that go into the answer as they are */
    int32_t from, count, column;
} Piece;

typedef struct { /* rows of a lookup's table that changed: they lie beside it */
    const uint8_t *base, *rows, *marks; /* marks: a bit for each row, 1 where it changed */
    const int64_t *places;              /* the rows that changed, ascending */
    int64_t num_rows, num_changed, base_pitch, pitch, row_bytes;
    int32_t read;
} Overlay;

enum { IDS, LENGTHS, WEIGHTS, DENSE, NUM_ARRAYS, TILED = 7, NUM_NAMES = 9 }; /* the names beyond the arrays are of parts that a request may not have */

typedef struct {
    Pool *pool;
    Remap *remap;
    const uint8_t *reads; /* `Read` of `kernel.c` for each lookup */
    const Place *places;
    const Feature *features;
    const Map *maps;
    const Piece *pieces;
    const Overlay *overlays;
    const uint8_t *apart; /* `Read` for each lookup, of rows that were laid out anew: all but where they are, and how many */
    int64_t read_bytes, rows_at, num_rows_at; /* of a `Read`, and in it */
    int32_t num_overlays, num_reads, num_features, num_maps, num_pieces, most_maps, takes_weights, unused; /* most_maps: of one feature */
    int64_t width, dense_dim, ids_per_thread, mapped_per_thread;
    PyObject *array_type, *none, *empty, *num_threads, *data_ptr, *width_number, *dense_number;
    PyObject *names[NUM_NAMES];
} Model;

typedef struct {
    Py_buffer views[NUM_ARRAYS];
    int held[NUM_ARRAYS];
    int64_t num_ids, num_rows;
    const int64_t *ids;
    const int32_t *lengths;
    const float *weights, *dense;
    int good; /* so far */
    PyObject *answer;
    float *out, *dense_out;
    void *scratch; /* what follows lies in it */
    Bags *bags;
    int64_t *starts;            /* of each feature's ids, and their end */
    const int64_t **ids_of;     /* of each feature */
    const int64_t **offsets_of; /* of each feature; NULL: one id a bag */
    int64_t **rows_of;          /* of each map */
    uint8_t **known_of;
    int64_t *unknown; /* ids, of each map */
    int64_t *offsets, *replaced, *rows;
    uint8_t *known, *hits; /* hits: of each overlay */
} Request;

/* An attribute that is None, or a plain array of one dimension: 0 where it is anything else. */
static int take(const Model *model, PyObject *given, int which, const char *formats, Request *request) {
    PyObject *array = PyObject_GetAttr(given, model->names[which]);
    int fits = 0;
    if (array == NULL) return PyErr_Clear(), 0;
    if (array == model->none) fits = which != IDS && which != LENGTHS;
    else {
        PyObject *type = PyObject_Type(array);
        Py_buffer *view = request->views + which;
        if (type == model->array_type) {
            if (PyObject_GetBuffer(array, view, PyBUF_ROWS_AND_FORMAT) < 0) PyErr_Clear();
            else {
                request->held[which] = 1;
                const int64_t itemsize = formats[0] == 'l' ? 8 : 4;
                fits = view->ndim == 1 && view->itemsize == itemsize && view->format && view->format[0] && strchr(formats, view->format[0]) && !view->format[1];
            }
        }
        Py_DecRef(type);
    }
    Py_DecRef(array);
    return fits;
}

/* Whether the parts that a plain request does not have are None, or empty arrays; those of tiled requests make it one even where they are empty. */
static int has_no_more(const Model *model, PyObject *given) {
    for (int which = NUM_ARRAYS; which < NUM_NAMES; which++) {
        PyObject *part = PyObject_GetAttr(given, model->names[which]);
        if (part == NULL) return PyErr_Clear(), 0;
        int none = part == model->none;
        if (!none && which < TILED) {
            PyObject *type = PyObject_Type(part);
            Py_buffer view;
            if (type == model->array_type && PyObject_GetBuffer(part, &view, PyBUF_ROWS_AND_FORMAT) == 0) {
                none = view.ndim == 1 && view.len == 0;
                PyBuffer_Release(&view);
            }
            PyErr_Clear();
            Py_DecRef(type);
        }
        Py_DecRef(part);
        if (!none) return 0;
    }
    return 1;
}

/* Take a request's arrays, and compare their sizes. */
static void read_request(const Model *model, PyObject *given, Request *request) {
    const int ids = take(model, given, IDS, "lq", request), lengths = ids && take(model, given, LENGTHS, "i", request);
    if (!lengths || !take(model, given, WEIGHTS, "f", request) || !take(model, given, DENSE, "f", request) || !has_no_more(model, given)) return;
    const Py_buffer *views = request->views;
    const int64_t num_lengths = views[LENGTHS].shape[0];
    request->num_ids = views[IDS].shape[0];
    request->num_rows = num_lengths / model->num_features;
    if (num_lengths == 0 || num_lengths % model->num_features) return;
    if (request->held[WEIGHTS] && (!model->takes_weights || views[WEIGHTS].shape[0] != request->num_ids)) return;
    if ((request->held[DENSE] ? views[DENSE].shape[0] : 0) != request->num_rows * model->dense_dim) return;
    request->ids = views[IDS].buf;
    request->lengths = views[LENGTHS].buf;
    request->weights = request->held[WEIGHTS] ? views[WEIGHTS].buf : NULL;
    request->dense = views[DENSE].buf;
    request->good = 1;
}

static int all_finite(const float *numbers, int64_t num) {
    uint32_t found = 0; /* 1 where an exponent is all ones: the number is infinite, or none */
    for (int64_t i = 0; i < num; i++) {
        uint32_t bits;
        memcpy(&bits, numbers + i, 4);
        found |= (bits & 0x7f800000) == 0x7f800000;
    }
    return !found;
}

/* Memory for all that is made of a request: more than it can need is asked for, and what is not written to costs nothing. */
static int make_room(const Model *model, Request *request) {
    const int64_t features = model->num_features, maps = model->num_maps, ids = request->num_ids, mapped = ids * model->most_maps;
    const int64_t words = model->num_reads * (int64_t)(sizeof(Bags) / 8) + (features + 1) + 2 * features + 3 * maps + features * (request->num_rows + 1) + ids + mapped;
    int64_t *at = request->scratch = malloc((size_t)(8 * words + mapped + model->num_overlays));
    if (at == NULL) return 0;
    request->bags = (Bags *)at, at += model->num_reads * (int64_t)(sizeof(Bags) / 8);
    request->starts = at, at += features + 1;
    request->ids_of = (const int64_t **)at, at += features;
    request->offsets_of = (const int64_t **)at, at += features;
    request->rows_of = (int64_t **)at, at += maps;
    request->known_of = (uint8_t **)at, at += maps;
    request->unknown = at, at += maps;
    request->offsets = at, at += features * (request->num_rows + 1);
    request->replaced = at, at += ids;
    request->rows = at, at += mapped;
    request->known = (uint8_t *)at;
    request->hits = request->known + mapped;
    return 1;
}

/* Where each feature's ids and bags begin; 0 where the lengths are not as they should be. */
static int cut(const Model *model, Request *request) {
    const int64_t num_rows = request->num_rows;
    int64_t place = 0;
    for (int32_t f = 0; f < model->num_features; f++) {
        const int32_t *lengths = request->lengths + f * num_rows;
        int32_t other = 0;
        for (int64_t row = 0; row < num_rows; row++) other |= lengths[row] ^ 1;
        request->starts[f] = place;
        request->offsets_of[f] = NULL;
        if (other) {
            int64_t *offsets = request->offsets + f * (num_rows + 1), count = 0;
            request->offsets_of[f] = offsets;
            for (int64_t row = 0; row < num_rows; row++) {
                const int64_t length = lengths[row];
                if (length < 0 || length > model->features[f].most) return 0;
                offsets[row] = count;
                count += length;
            }
            offsets[num_rows] = count;
            place += count;
        } else
            place += num_rows;
    }
    request->starts[model->num_features] = place;
    return place == request->num_ids;
}

/* Ids beyond a feature's bound become its out-of-vocabulary row; 0 where it has none. */
static int bound(const Model *model, Request *request) {
    for (int32_t f = 0; f < model->num_features; f++) {
        const Feature *feature = model->features + f;
        const int64_t start = request->starts[f], num = request->starts[f + 1] - start, *ids = request->ids_of[f] = request->ids + start;
        const uint64_t most = feature->bound;
        if (most == NO_BOUND) continue;
        uint64_t beyond = 0;
        for (int64_t i = 0; i < num; i++) beyond |= (uint64_t)ids[i] > most;
        if (!beyond) continue;
        if (feature->oov < 0) return 0;
        int64_t *replaced = request->replaced + start;
        for (int64_t i = 0; i < num; i++) replaced[i] = (uint64_t)ids[i] > most ? feature->oov : ids[i];
        request->ids_of[f] = replaced;
    }
    return 1;
}

/* Raw ids become rows; 0 where one has none, and the model refuses such ids. */
static int map_ids(const Model *model, Request *request, int32_t num_threads) {
    int64_t *rows = request->rows;
    uint8_t *known = request->known;
    for (int32_t m = 0; m < model->num_maps; m++) {
        const Map *map = model->maps + m;
        const int64_t num = request->starts[map->feature + 1] - request->starts[map->feature], most = num / model->mapped_per_thread;
        const int32_t threads = most < 2 ? 1 : most < num_threads ? (int32_t)most : num_threads;
        model->remap(request->ids_of[map->feature], num, map->lines, map->num_homes, map->seed, map->fallback, rows, known, threads);
        int64_t found = 0;
        for (int64_t i = 0; i < num; i++) found += known[i];
        if (found < num && map->unknown == REFUSE) return 0;
        request->unknown[m] = num - found;
        request->rows_of[m] = rows, rows += num;
        request->known_of[m] = known, known += num;
    }
    return 1;
}

static void check(const Model *model, Request *request, int32_t num_threads) {
    request->good = all_finite(request->weights, request->weights ? request->num_ids : 0) &&
                    all_finite(request->dense, request->num_rows * model->dense_dim) && make_room(model, request) && cut(model, request) &&
                    bound(model, request) && map_ids(model, request, num_threads);
}

/* Whether any of a lookup's rows changed; -1 where one is no row of the table. */
static int changed(const Overlay *overlay, const int64_t *rows, int64_t num) {
    uint64_t greatest = 0, found = 0;
    for (int64_t i = 0; i < num; i++) greatest = (uint64_t)rows[i] > greatest ? (uint64_t)rows[i] : greatest;
    if (num && greatest >= (uint64_t)overlay->num_rows) return -1;
    for (int64_t i = 0; i < num; i++) found |= overlay->marks[rows[i] >> 3] >> (rows[i] & 7) & 1;
    return found != 0;
}

static const uint8_t *row_of(const Overlay *overlay, int64_t row) {
    if (!(overlay->marks[row >> 3] >> (row & 7) & 1)) return overlay->base + row * overlay->base_pitch;
    int64_t first = 0, stop = overlay->num_changed; /* the place of the row is in [first, stop) */
    while (stop - first > 1) {
        const int64_t middle = first + (stop - first) / 2;
        if (overlay->places[middle] <= row) first = middle;
        else stop = middle;
    }
    return overlay->rows + first * overlay->pitch;
}

/* Lookups that read a changed row get all of theirs laid out in the order of the ids. What they then read, which the caller frees with `*room`; NULL
 * where a row is not there, or there is no memory. */
static const uint8_t *lay_out_changed(const Model *model, const Request *request, uint8_t **room) {
    int64_t size = model->num_reads * model->read_bytes, found = 0;
    for (int32_t o = 0; o < model->num_overlays; o++) {
        const Overlay *overlay = model->overlays + o;
        const int32_t f = model->places[overlay->read].feature;
        const int64_t num = request->starts[f + 1] - request->starts[f];
        const int is_changed = changed(overlay, request->bags[overlay->read].ids, num);
        if (is_changed < 0) return NULL;
        request->hits[o] = (uint8_t)is_changed, found += is_changed;
        size += is_changed ? num * (overlay->pitch + 8) + 16 : 0;
    }
    if (!found) return model->reads;
    uint8_t *at = *room = malloc((size_t)size), *reads = at;
    if (at == NULL) return NULL;
    memcpy(reads, model->reads, (size_t)(model->num_reads * model->read_bytes));
    at += model->num_reads * model->read_bytes;
    for (int32_t o = 0; o < model->num_overlays; o++) {
        if (!request->hits[o]) continue;
        const Overlay *overlay = model->overlays + o;
        const int32_t f = model->places[overlay->read].feature;
        const int64_t num = request->starts[f + 1] - request->starts[f], *ids = request->bags[overlay->read].ids;
        uint8_t *own = reads + overlay->read * model->read_bytes;
        int64_t *order = (int64_t *)(at += -(uintptr_t)at & 7);
        at += 8 * num;
        memcpy(own, model->apart + overlay->read * model->read_bytes, (size_t)model->read_bytes);
        memcpy(own + model->rows_at, &at, sizeof at);
        memcpy(own + model->num_rows_at, &num, sizeof num);
        for (int64_t i = 0; i < num; i++, at += overlay->pitch) {
            memcpy(at, row_of(overlay, ids[i]), (size_t)overlay->row_bytes);
            order[i] = i;
        }
        request->bags[overlay->read].ids = order;
    }
    return reads;
}

static void look_up(const Model *model, Request *request, int32_t num_threads) {
    for (int32_t r = 0; r < model->num_reads; r++) {
        const Place *place = model->places + r;
        request->bags[r] = (Bags){
            place->map < 0 ? request->ids_of[place->feature] : request->rows_of[place->map],
            request->offsets_of[place->feature],
            request->weights ? request->weights + request->starts[place->feature] : NULL,
            request->out + place->column,
            model->width,
        };
    }
    const int64_t most = request->num_ids / model->ids_per_thread;
    const int32_t threads = most < 2 ? 1 : most < num_threads ? (int32_t)most : num_threads;
    uint8_t *room = NULL;
    const uint8_t *reads = lay_out_changed(model, request, &room);
    request->good = reads && model->pool(reads, request->bags, model->num_reads, request->num_rows, threads) < 0;
    free(room);
    for (int32_t p = 0; p < model->num_pieces; p++) {
        const Piece *piece = model->pieces + p;
        const float *from = request->dense + piece->from;
        float *to = request->out + piece->column;
        for (int64_t row = 0; row < request->num_rows; row++, from += model->dense_dim, to += model->width)
            memcpy(to, from, sizeof *to * (size_t)piece->count);
    }
    if (request->dense_out && model->dense_dim)
        memcpy(request->dense_out, request->dense, sizeof *request->dense * (size_t)(request->num_rows * model->dense_dim));
}

typedef struct {
    const Model *model;
    Request *requests;
    int64_t num_requests, num_ids, num_work;
    int32_t num_threads;
} Call;

typedef struct {
    const Call *call;
    void (*step)(const Model *, Request *, int32_t);
    int32_t num_threads; /* for each request */
    int64_t next;        /* request that no thread has taken */
} Work;

static void *run(void *given) {
    Work *work = given;
    for (;;) {
        const int64_t place = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED);
        if (place >= work->call->num_requests) return NULL;
        if (work->call->requests[place].good) work->step(work->call->model, work->call->requests + place, work->num_threads);
    }
}

/* Do a step for every good request: where there are many and enough work, several at a time. */
static void each(const Call *call, void (*step)(const Model *, Request *, int32_t)) {
    const int32_t abreast = call->num_threads <= call->num_requests ? call->num_threads : 1;
    Work work = {call, step, abreast > 1 ? 1 : call->num_threads, 0};
    pthread_t threads[MOST_THREADS];
    int started[MOST_THREADS];
    for (int32_t t = 1; t < abreast; t++) started[t] = pthread_create(&threads[t], NULL, run, &work) == 0;
    run(&work);
    for (int32_t t = 1; t < abreast; t++)
        if (started[t]) pthread_join(threads[t], NULL);
}

/* A tensor of float32 [num_rows, width], and its memory; NULL with Python's error set. */
static PyObject *new_tensor(const Model *model, int64_t num_rows, PyObject *width, float **memory) {
    PyObject *rows = PyLong_FromLongLong(num_rows), *tensor = NULL, *place = NULL;
    if (rows) tensor = PyObject_CallFunctionObjArgs(model->empty, rows, width, NULL);
    if (tensor) place = PyObject_CallMethodObjArgs(tensor, model->data_ptr, NULL);
    if (place) *memory = PyLong_AsVoidPtr(place);
    else if (tensor) Py_DecRef(tensor), tensor = NULL;
    if (place) Py_DecRef(place);
    if (rows) Py_DecRef(rows);
    return tensor;
}

/* Room for the answers of all requests that are good so far: 0 with Python's error set. */
static int make_answers(const Call *call, PyObject **together, PyObject **dense) {
    const Model *model = call->model;
    float *out = NULL, *dense_out = NULL;
    if (together) {
        int64_t num_rows = 0;
        for (int64_t i = 0; i < call->num_requests; i++) num_rows += call->requests[i].good ? call->requests[i].num_rows : 0;
        if ((*together = new_tensor(model, num_rows, model->width_number, &out)) == NULL) return 0;
        if (model->dense_dim && (*dense = new_tensor(model, num_rows, model->dense_number, &dense_out)) == NULL) return 0;
        if (call->num_requests) call->requests[0].out = out, call->requests[0].dense_out = dense_out;
        return 1;
    }
    for (int64_t i = 0; i < call->num_requests; i++) {
        Request *request = call->requests + i;
        if (request->good && (request->answer = new_tensor(model, request->num_rows, model->width_number, &request->out)) == NULL) return 0;
    }
    return 1;
}

/* One after the other into what was made for all. */
static void place_answers(const Call *call) {
    float *out = call->requests[0].out, *dense_out = call->requests[0].dense_out;
    for (int64_t i = 0; i < call->num_requests; i++) {
        Request *request = call->requests + i;
        if (!request->good) continue;
        request->out = out, out += request->num_rows * call->model->width;
        request->dense_out = dense_out;
        if (dense_out) dense_out += request->num_rows * call->model->dense_dim;
    }
}

/* Copy between a run of numbers and the ids, or from it to the rows, that a map lacks, of all requests. */
static void copy_unknown(const Call *call, int32_t m, char *run, int to_rows) {
    const int32_t f = call->model->maps[m].feature;
    for (int64_t i = 0; i < call->num_requests; i++) {
        Request *request = call->requests + i;
        if (!request->good || !request->unknown[m]) continue;
        const int64_t num = request->starts[f + 1] - request->starts[f];
        for (int64_t at = 0; at < num; at++) {
            if (request->known_of[m][at]) continue;
            if (to_rows) memcpy(request->rows_of[m] + at, run, 8);
            else memcpy(run, request->ids_of[f] + at, 8);
            run += 8;
        }
    }
}

/* How many ids of all requests a map lacks. */
static int64_t num_unknown(const Call *call, int32_t m) {
    int64_t found = 0;
    for (int64_t i = 0; i < call->num_requests; i++)
        if (call->requests[i].good) found += call->requests[i].unknown[m];
    return found;
}

/* The rows of the ids that a map lacks, where only Python knows them: 0 with its error set. */
static int ask_rows(const Call *call, int32_t m) {
    const int64_t size = 8 * num_unknown(call, m);
    PyObject *asked = PyBytes_FromStringAndSize(NULL, size), *told = NULL;
    if (asked == NULL) return 0;
    copy_unknown(call, m, PyBytes_AsString(asked), 0);
    told = PyObject_CallFunctionObjArgs(call->model->maps[m].rows_of, asked, NULL);
    Py_DecRef(asked);
    const int fits = told && PyBytes_Size(told) == size;
    if (fits) copy_unknown(call, m, PyBytes_AsString(told), 1);
    if (told) Py_DecRef(told);
    return fits;
}

static int needs_asking(const Call *call) {
    for (int32_t m = 0; m < call->model->num_maps; m++)
        if (call->model->maps[m].unknown == ASK && num_unknown(call, m)) return 1;
    return 0;
}

static int ask_all(const Call *call) {
    for (int32_t m = 0; m < call->model->num_maps; m++)
        if (call->model->maps[m].unknown == ASK && num_unknown(call, m) && !ask_rows(call, m)) return 0;
    return 1;
}

static int64_t num_good(const Call *call) {
    int64_t found = 0;
    for (int64_t i = 0; i < call->num_requests; i++) found += call->requests[i].good;
    return found;
}

/* Check all requests and look up the good ones; without Python's lock where that takes long. 0 with Python's error set. */
static int work_through(const Call *call, int together) {
    PyThreadState *held = call->num_work >= WORTH_LETTING_GO ? PyEval_SaveThread() : NULL;
    each(call, check);
    if (needs_asking(call)) {
        if (held) PyEval_RestoreThread(held);
        if (!ask_all(call)) return 0;
        if (held) held = PyEval_SaveThread();
    }
    if (together) place_answers(call);
    const int64_t placed = num_good(call);
    each(call, look_up);
    if (together && num_good(call) < placed) /* a gap between the others' answers */
        for (int64_t i = 0; i < call->num_requests; i++) call->requests[i].good = 0;
    if (held) PyEval_RestoreThread(held);
    return 1;
}

static PyObject *or_none(const Model *model, PyObject *found) {
    if (found == NULL) found = model->none, Py_IncRef(found);
    return found;
}

/* (answers, dense, rows of each request or -1, ids and unknown ids of each map); takes the answers. */
static PyObject *tell(const Call *call, PyObject *together, PyObject *dense) {
    const Model *model = call->model;
    PyObject *found = PyTuple_New(4), *rows = PyTuple_New(call->num_requests), *counts = PyTuple_New(2 * model->num_maps);
    PyObject *answers = together ? together : PyTuple_New(call->num_requests);
    if (!found || !rows || !counts || !answers) {
        PyObject *made[] = {found, rows, counts, answers, dense};
        for (size_t i = 0; i < sizeof made / sizeof *made; i++) Py_DecRef(made[i]); /* which takes NULL too */
        return NULL;
    }
    for (int64_t i = 0; i < call->num_requests; i++) {
        Request *request = call->requests + i;
        PyTuple_SetItem(rows, i, PyLong_FromLongLong(request->good ? request->num_rows : -1));
        if (together) continue;
        PyTuple_SetItem(answers, i, or_none(model, request->good ? request->answer : NULL));
        if (request->good) request->answer = NULL;
    }
    for (int32_t m = 0; m < model->num_maps; m++) {
        int64_t asked = 0, unknown = 0;
        for (int64_t i = 0; i < call->num_requests; i++) {
            const Request *request = call->requests + i;
            if (!request->good) continue;
            asked += request->starts[model->maps[m].feature + 1] - request->starts[model->maps[m].feature];
            unknown += request->unknown[m];
        }
        PyTuple_SetItem(counts, 2 * m, PyLong_FromLongLong(asked));
        PyTuple_SetItem(counts, 2 * m + 1, PyLong_FromLongLong(unknown));
    }
    PyTuple_SetItem(found, 0, answers);
    PyTuple_SetItem(found, 1, or_none(model, dense));
    PyTuple_SetItem(found, 2, rows);
    PyTuple_SetItem(found, 3, counts);
    return found;
}

static void let_go(Request *request) {
    for (int which = 0; which < NUM_ARRAYS; which++)
        if (request->held[which]) PyBuffer_Release(request->views + which);
    if (request->answer) Py_DecRef(request->answer);
    free(request->scratch);
}

static PyObject *answer_all(const Model *model, PyObject *given, Request *requests, int64_t num_requests, int is_together) {
    Call call = {model, requests, num_requests, 0, 0, 1};
    PyObject *together = NULL, *dense = NULL;
    for (int64_t i = 0; i < num_requests; i++) {
        PyObject *one = PySequence_GetItem(given, i);
        if (one == NULL) return NULL;
        read_request(model, one, requests + i);
        Py_DecRef(one);
        if (requests[i].good) call.num_ids += requests[i].num_ids, call.num_work += requests[i].num_ids + requests[i].num_rows * model->num_features;
    }
    if (call.num_ids >= 2 * model->ids_per_thread) {
        PyObject *number = PyObject_CallFunctionObjArgs(model->num_threads, NULL);
        if (number == NULL) return NULL;
        const long long most = PyLong_AsLongLong(number), useful = call.num_ids / model->ids_per_thread;
        Py_DecRef(number);
        call.num_threads = (int32_t)(useful < most ? useful : most);
        if (call.num_threads < 1) call.num_threads = 1;
        if (call.num_threads > MOST_THREADS) call.num_threads = MOST_THREADS;
    }
    const int made = make_answers(&call, is_together ? &together : NULL, &dense) && work_through(&call, is_together);
    if (made) return tell(&call, together, dense);
    if (together) Py_DecRef(together);
    if (dense) Py_DecRef(dense);
    return NULL;
}

/* (requests, whether answers go into one tensor): see `tell`. */
static PyObject *call(PyObject *self, PyObject *const *args, Py_ssize_t num_args) {
    const Model *model = PyLong_AsVoidPtr(PyTuple_GetItem(self, 0));
    const Py_ssize_t num_requests = num_args == 2 ? PySequence_Size(args[0]) : -1;
    Request one = {0}, *requests = &one;
    if (num_requests < 0) return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    if (num_requests > 1 && (requests = calloc((size_t)num_requests, sizeof *requests)) == NULL) return PyErr_NoMemory();
    PyObject *found = answer_all(model, args[0], requests, num_requests, (int)PyLong_AsLongLong(args[1]));
    for (Py_ssize_t i = 0; i < num_requests; i++) let_go(requests + i);
    if (requests != &one) free(requests);
    return found;
}

/* A function of Python's for a model: `self` is a tuple that begins with its address, and holds what it needs. */
PyObject *emberline_requests(PyObject *self) {
    static PyMethodDef method = {"look_up", call, METH_FASTCALL, NULL};
    return PyCFunction_NewEx(&method, self, NULL);
}
