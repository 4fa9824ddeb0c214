/* Sums the leaves of a forest for one row at a time: the compiled half of predictor.py.
 *
 * One source for every model: it is compiled once a machine, and a model is a block of arrays laid out by
 * tree_code.py, which has checked every index. A row goes through two steps.
 *
 * 1. Every test of the forest becomes "byte > byte". A byte is the number of sorted cuts of one column that lie
 *    below the value, so `value <= cut[i]` is `!(byte > i)`; the cuts are counted 72 at a time. Missing values
 *    and category sets become bytes too, so that the trees know nothing of them.
 * 2. The trees are answered from these bytes, without a branch that depends on them:
 *    - with AVX-512 VBMI, 16 trees of at most 32 leaves at a time: all nodes are tested, and every node that says
 *      "right" strikes the leaves left of it; the first leaf that is left is the answer (the idea of QuickScorer);
 *    - else by walking eight trees in step.
 *
 * The leaves are added in the order of the trees, so the sum is LightGBM's to the last bit. Nothing here is
 * written after a model is made, so that threads need no lock.
 *
 * Python's functions are declared by hand, from its stable ABI (3.11 and later), so that no headers are needed.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512CD__) && defined(__AVX512VBMI__)
#define HAS_STRIKES 1
#endif
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#define EXPORT __attribute__((visibility("default")))
enum { BLOCK = 8, CUTS = 72, SCALE_DOUBLES = 80, LANES = 16, LEAVES = 32, INTERLEAVED = 8, STRIKE_BYTES = 256 };

typedef struct {
    uint16_t byte;  /* which byte of the row */
    uint16_t cut;   /* right where the byte is above it; a leaf has 255, which none is */
    uint32_t left;  /* the right child follows; a leaf is its own child */
} Node;

typedef struct {
    int64_t column, first_byte, set_count, code_count, table; /* table: code_count + 1 rows of set_count bytes */
} Category;

/* Counts, then places in the block, in bytes. The order is that of tree_code.HEADER. */
typedef struct {
    int64_t size, columns, scales, categories, bytes, trees, is_average, is_struck;
    int64_t cuts_at, column_at, target_at, special_at, window_at, category_at;
    int64_t node_at, root_at, node_value_at;
    int64_t byte_at, upper_at, cut_at, strike_at, leaf_at;
} Model;

#define AT(type, place) ((const type *)((const char *)model + model->place))

/* 256 bytes are read whatever the model uses. */
static inline size_t scratch_size(const Model *model)
{
    return model->bytes < STRIKE_BYTES ? STRIKE_BYTES : (size_t)model->bytes;
}

/* How many of the 8 sorted cuts are below the value; none for NaN. */
static inline unsigned count_below(const double *cuts, double value)
{
#if defined(__AVX512F__)
    return (unsigned)__builtin_popcount(
        _mm512_cmp_pd_mask(_mm512_loadu_pd(cuts), _mm512_set1_pd(value), _CMP_LT_OQ));
#else
    unsigned count = 0;
    for (int i = 0; i < BLOCK; i++)
        count += cuts[i] < value;
    return count;
#endif
}

static inline void fill_bytes(const Model *model, const double *row, uint8_t *bytes)
{
    const double *cuts = AT(double, cuts_at), *window = AT(double, window_at);
    const int32_t *column = AT(int32_t, column_at), *target = AT(int32_t, target_at);
    memset(bytes, 0, scratch_size(model));
    const uint8_t *special = AT(uint8_t, special_at);
    for (int64_t scale = 0; scale < model->scales; scale++, cuts += SCALE_DOUBLES) {
        double value = row[column[scale]];
        unsigned block = count_below(cuts, value); /* the last cut of each of the first 8 blocks */
        unsigned count = BLOCK * block + count_below(cuts + BLOCK + BLOCK * block, value);
        /* Not "<=": NaN is special whatever the window is. */
        bytes[target[scale]] += !(fabs(value) > window[scale]) ? special[scale] : (uint8_t)count;
    }
    const Category *category = AT(Category, category_at);
    for (int64_t i = 0; i < model->categories; i++, category++) {
        double value = row[category->column];
        /* LightGBM cuts the fraction off, so -0.5 is code 0; NaN, negative and unknown codes share the last row. */
        int64_t code = value > -1.0 && value < (double)category->code_count ? (int64_t)value : category->code_count;
        memcpy(bytes + category->first_byte,
               (const uint8_t *)model + category->table + code * category->set_count,
               (size_t)category->set_count);
    }
}

#ifdef HAS_STRIKES
static inline double strike(const Model *model, const uint8_t *bytes)
{
    const __m512i low0 = _mm512_loadu_si512(bytes), low1 = _mm512_loadu_si512(bytes + 64);
    const __m512i high0 = _mm512_loadu_si512(bytes + 128), high1 = _mm512_loadu_si512(bytes + 192);
    const uint8_t *byte = AT(uint8_t, byte_at), *cut = AT(uint8_t, cut_at);
    const uint64_t *upper = AT(uint64_t, upper_at);
    const uint32_t *kept = AT(uint32_t, strike_at);
    const double *leaf = AT(double, leaf_at);
    double sum = 0.0;
    for (int64_t first = 0; first < model->trees; first += LANES) {
        /* Four independent chains, one for each quarter of the 64 tests of a step. */
        __m512i left0 = _mm512_set1_epi32(-1), left1 = left0, left2 = left0, left3 = left0;
        for (int step = 0; step < LEAVES / 4; step++) {
            __m512i place = _mm512_load_si512(byte);
            __m512i value = _mm512_mask_blend_epi8(*upper, _mm512_permutex2var_epi8(low0, place, low1),
                                                   _mm512_permutex2var_epi8(high0, place, high1));
            uint64_t right = _mm512_cmpgt_epu8_mask(value, _mm512_load_si512(cut));
            left0 = _mm512_mask_and_epi32(left0, (__mmask16)right, left0, _mm512_load_si512(kept));
            left1 = _mm512_mask_and_epi32(left1, (__mmask16)(right >> 16), left1, _mm512_load_si512(kept + 16));
            left2 = _mm512_mask_and_epi32(left2, (__mmask16)(right >> 32), left2, _mm512_load_si512(kept + 32));
            left3 = _mm512_mask_and_epi32(left3, (__mmask16)(right >> 48), left3, _mm512_load_si512(kept + 48));
            byte += 64, cut += 64, kept += 64, upper++;
        }
        __m512i left = _mm512_and_si512(_mm512_and_si512(left0, left1), _mm512_and_si512(left2, left3));
        uint32_t exit_leaf[LANES];
        _mm512_storeu_si512(exit_leaf, _mm512_lzcnt_epi32(left));
        if (model->trees - first >= LANES)
            for (int lane = 0; lane < LANES; lane++)
                sum += leaf[LEAVES * lane + exit_leaf[lane]];
        else
            for (int lane = 0; lane < model->trees - first; lane++)
                sum += leaf[LEAVES * lane + exit_leaf[lane]];
        leaf += LANES * LEAVES;
    }
    return sum;
}
#endif

static inline double walk(const Model *model, const uint8_t *bytes)
{
    const Node *node = AT(Node, node_at);
    const uint32_t *root = AT(uint32_t, root_at);
    const double *value = AT(double, node_value_at);
    double sum = 0.0;
    for (int64_t first = 0; first < model->trees; first += INTERLEAVED) {
        uint32_t at[INTERLEAVED], moved;
        for (int i = 0; i < INTERLEAVED; i++)
            at[i] = root[first + i];
        do {
            moved = 0;
            for (int turn = 0; turn < 2; turn++)
                for (int i = 0; i < INTERLEAVED; i++) {
                    Node here = node[at[i]];
                    uint32_t next = here.left + (bytes[here.byte] > here.cut);
                    moved |= turn ? next ^ at[i] : 0; /* a leaf stays where it is */
                    at[i] = next;
                }
        } while (moved);
        /* The trees that fill the last eight up are one leaf of 0, and x + 0 is x. */
        for (int i = 0; i < INTERLEAVED; i++)
            sum += value[at[i]];
    }
    return sum;
}

static double answer(const Model *model, const double *row, uint8_t *bytes)
{
    fill_bytes(model, row, bytes);
    double sum;
#ifdef HAS_STRIKES
    if (model->is_struck)
        sum = strike(model, bytes);
    else
#endif
        sum = walk(model, bytes);
    return model->is_average ? sum / (double)model->trees : sum;
}

EXPORT int warpgauge_has_strikes(void)
{
#ifdef HAS_STRIKES
    return 1;
#else
    return 0;
#endif
}

/* matrix: rows x columns, C order. The caller keeps the model alive. */
EXPORT void warpgauge_predict(const Model *model, const double *matrix, int64_t rows, double *out)
{
    uint8_t bytes[scratch_size(model)];
    for (int64_t row = 0; row < rows; row++)
        out[row] = answer(model, matrix + row * model->columns, bytes);
}

/* ---- one row, called from Python without ctypes, whose call alone costs a third of the prediction ---- */

typedef struct _object PyObject;
typedef intptr_t Py_ssize_t;
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
    PyObject *(*function)(PyObject *, PyObject *);
    int flags;
    const char *doc;
} PyMethodDef;
enum { PYBUF_FORMAT_AND_STRIDES = 0x0004 | 0x0018, METHOD_OF_ONE_ARGUMENT = 0x0008 };

extern int PyObject_GetBuffer(PyObject *, Py_buffer *, int);
extern void PyBuffer_Release(Py_buffer *);
extern int PyBuffer_ToContiguous(void *, const Py_buffer *, Py_ssize_t, char);
extern PyObject *PyFloat_FromDouble(double);
extern PyObject *PyErr_Format(PyObject *, const char *, ...);
extern PyObject *PyErr_NoMemory(void);
extern void PyErr_Clear(void);
extern PyObject *PyCapsule_New(void *, const char *, void (*)(PyObject *));
extern void *PyCapsule_GetPointer(PyObject *, const char *);
extern PyObject *PyCFunction_NewEx(PyMethodDef *, PyObject *, PyObject *);

static const char CAPSULE[] = "warpgauge.model";
static PyObject *schema_error;

/* Once, when the library is loaded: the class to raise. It lives as long as the interpreter. */
EXPORT void warpgauge_use_error(PyObject *error)
{
    schema_error = error;
}

static PyObject *predict_row(PyObject *self, PyObject *row)
{
    const Model *model = PyCapsule_GetPointer(self, CAPSULE);
    Py_buffer view;
    if (!model)
        return NULL;
    if (PyObject_GetBuffer(row, &view, PYBUF_FORMAT_AND_STRIDES)) {
        PyErr_Clear();
        return PyErr_Format(schema_error, "a row is something other than an array; needed is one dimension of %zd "
                            "float64", (Py_ssize_t)model->columns);
    }
    if (view.ndim != 1 || view.shape[0] != model->columns || view.itemsize != sizeof(double) || !view.format ||
        strcmp(view.format, "d")) {
        PyErr_Format(schema_error, "a row has %d dimensions and %zd values of format %s; needed is one "
                     "dimension of %zd float64 (format d)", view.ndim, view.itemsize ? view.len / view.itemsize : 0,
                     view.format ? view.format : "B", (Py_ssize_t)model->columns);
        PyBuffer_Release(&view);
        return NULL;
    }
    double *copy = NULL;
    if (view.strides[0] != sizeof(double)) {
        copy = malloc((size_t)view.len);
        if (!copy || PyBuffer_ToContiguous(copy, &view, view.len, 'C')) {
            PyBuffer_Release(&view);
            if (copy) {
                free(copy);
                return NULL;
            }
            return PyErr_NoMemory();
        }
    }
    uint8_t bytes[scratch_size(model)];
    double sum = answer(model, copy ? copy : view.buf, bytes);
    free(copy);
    PyBuffer_Release(&view);
    return PyFloat_FromDouble(sum);
}

static PyMethodDef PREDICT_ROW = {"predict_row", predict_row, METHOD_OF_ONE_ARGUMENT,
                                  "predict_row(row): one float64 row to a float."};

static void free_model(PyObject *capsule)
{
    free(PyCapsule_GetPointer(capsule, CAPSULE));
}

/* A capsule that owns a copy of the block, aligned for 64-byte loads. */
EXPORT PyObject *warpgauge_model(const void *block)
{
    const Model *source = block;
    void *model = NULL;
    if (posix_memalign(&model, 64, (size_t)source->size))
        return PyErr_NoMemory();
    memcpy(model, block, (size_t)source->size);
    PyObject *capsule = PyCapsule_New(model, CAPSULE, free_model);
    if (!capsule)
        free(model);
    return capsule;
}

/* The function of one row; it keeps the capsule alive. */
EXPORT PyObject *warpgauge_row_function(PyObject *capsule)
{
    return PyCFunction_NewEx(&PREDICT_ROW, capsule, NULL);
}

EXPORT const void *warpgauge_address(PyObject *capsule)
{
    return PyCapsule_GetPointer(capsule, CAPSULE);
}
