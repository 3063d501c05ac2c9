/* Public functions: check isa, variant and overlap, divide the work over threads, call the table.
 *
 * This file does not compute and does not choose an instruction set for the caller.
 * Source: this project.
 */
#include "isa.h"
#include "threads.h"

static const ondie_table *const tables[ONDIE_ISAS] = {
    &ondie_table_base,
#if defined(__x86_64__)
    &ondie_table_avx2,
    &ondie_table_avx512,
#endif
};

/* Older clang does not know "f16c". Every processor with AVX2 has F16C. */
#if defined(__clang__) && __clang_major__ < 18
#define HAS_F16C 1
#else
#define HAS_F16C __builtin_cpu_supports("f16c")
#endif

int ondie_isa_runs(int isa) {
    if (isa < 0 || isa >= ONDIE_ISAS || !tables[isa]) return 0;
#if defined(__x86_64__)
    if (isa == ONDIE_AVX2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HAS_F16C;
    if (isa == ONDIE_AVX512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return 1;
}

/* Bytes per element of w, g, the two states and out, by storage variant. */
static const size_t bytes_of[ONDIE_VARIANTS][5] = {
    [ONDIE_CANONICAL] = {4, 4, 4, 4, 0}, [ONDIE_TORCH] = {4, 4, 4, 4, 0},
    [ONDIE_FP16] = {4, 2, 4, 4, 2},      [ONDIE_BF16] = {4, 2, 4, 4, 2},
    [ONDIE_BF16_ALL] = {2, 2, 2, 2, 0},  [ONDIE_BF16_STOCHASTIC] = {2, 2, 2, 2, 0},
    [ONDIE_CODES] = {4, 4, 1, 1, 0},
};

typedef struct {
    char *at;
    size_t bytes;
} range;

enum { ARRAYS = 7 };

/* Return 1 if two arrays of a part share a byte. */
static int overlap(const ondie_part *p, const size_t *each) {
    const size_t n = p->n, scales = (n + ONDIE_CODE_BLOCK - 1) / ONDIE_CODE_BLOCK * 4;
    const range all[ARRAYS] = {
        {p->w, n * each[0]},   {p->g, n * each[1]},          {p->a, n * each[2]},
        {p->b, n * each[3]},   {p->out, n * each[4]},        {(char *)p->scale_a, scales},
        {(char *)p->scale_b, scales},
    };
    range there[ARRAYS];
    int count = 0;
    for (int i = 0; i < ARRAYS; i++)
        if (all[i].at) there[count++] = all[i];
    for (int i = 1; i < count; i++)
        for (int j = 0; j < i; j++)
            if ((uintptr_t)there[i].at < (uintptr_t)there[j].at + there[j].bytes &&
                (uintptr_t)there[j].at < (uintptr_t)there[i].at + there[i].bytes)
                return 1;
    return 0;
}

/* Return the part that consists of elements `from` to `to` - 1 of part p. each: bytes per element
 * of its arrays, as in bytes_of. */
static ondie_part cut(const ondie_part *p, size_t from, size_t to, const size_t *each) {
    const size_t block = from / ONDIE_CODE_BLOCK;
    return (ondie_part){
        .w = (char *)p->w + from * each[0],
        .g = p->g ? (char *)p->g + from * each[1] : 0,
        .a = p->a ? (char *)p->a + from * each[2] : 0,
        .b = p->b ? (char *)p->b + from * each[3] : 0,
        .out = p->out ? (char *)p->out + from * each[4] : 0,
        .scale_a = p->scale_a ? p->scale_a + block : 0,
        .scale_b = p->scale_b ? p->scale_b + block : 0,
        .n = to - from,
        .first = p->first + from,
    };
}

/* Return the number of threads for n elements: at most `threads`, and at most one for each
 * ONDIE_LEAST elements. */
static int paying(size_t n, int threads) {
    return n / ONDIE_LEAST < (size_t)threads ? (int)(n / ONDIE_LEAST) : threads;
}

static size_t grains(size_t n) { return (n + ONDIE_GRAIN - 1) / ONDIE_GRAIN; }

/* Job of an update: the call, the function for its operation and variant, and the key. */
typedef struct {
    const ondie_call *call;
    ondie_update_function update;
    uint32_t key;
} updating;

/* Update a part. The loops number elements in 32 bits, so a part of ONDIE_BF16_STOCHASTIC is split
 * where the upper 32 bits of the element number change. */
static void update_part(const updating *u, const ondie_part *p, const ondie_part *next) {
    const ondie_call *const c = u->call;
    const size_t most = (1ull << 32) - (uint32_t)p->first;
    if (c->variant == ONDIE_BF16_STOCHASTIC && p->n > most) {
        const ondie_part now = cut(p, 0, most, bytes_of[c->variant]);
        const ondie_part rest = cut(p, most, p->n, bytes_of[c->variant]);
        u->update(&now, 0, c->coef, c->codes, u->key);
        update_part(u, &rest, next);
        return;
    }
    u->update(p, next, c->coef, c->codes, u->key);
}

/* Update parts `from` to `to` - 1. If the call has only one part, update these grains of it. */
static void update_some(void *job, size_t from, size_t to) {
    const updating *const u = job;
    const ondie_call *const c = u->call;
    if (c->count == 1) {
        const size_t n = c->parts->n, end = to * ONDIE_GRAIN < n ? to * ONDIE_GRAIN : n;
        if (end - from * ONDIE_GRAIN == n)
            update_part(u, c->parts, 0);
        else {
            const ondie_part p = cut(c->parts, from * ONDIE_GRAIN, end, bytes_of[c->variant]);
            update_part(u, &p, 0);
        }
        return;
    }
    for (size_t i = from; i < to; i++)
        update_part(u, &c->parts[i], i + 1 < to ? &c->parts[i + 1] : 0);
}

int ondie_update(const ondie_call *call, uint32_t key) {
    if (!ondie_isa_runs(call->isa)) return ONDIE_NO_ISA;
    if (call->op < 0 || call->op >= ONDIE_OPS || call->variant < 0 ||
        call->variant >= ONDIE_VARIANTS)
        return ONDIE_NO_UPDATE;
    updating u = {call, tables[call->isa]->update[call->op][call->variant], key};
    if (!u.update) return ONDIE_NO_UPDATE;
    size_t n = 0;
    for (size_t i = 0; i < call->count; i++) {
        if (overlap(&call->parts[i], bytes_of[call->variant])) return ONDIE_OVERLAP;
        n += call->parts[i].n;
    }
    ondie_divide(call->count == 1 ? grains(n) : call->count, paying(n, call->threads), update_some,
                 &u);
    return ONDIE_OK;
}

int ondie_update_one(int isa, int op, int variant, int threads, void *w, void *g, void *a, void *b,
                     void *out, void *scale_a, void *scale_b, size_t n, uint64_t first,
                     const float *coef, const ondie_codes *codes, uint32_t key) {
    const ondie_part p = {w, g, a, b, out, scale_a, scale_b, n, first};
    const ondie_call call = {isa, op, variant, threads, &p, 1, coef, codes};
    return ondie_update(&call, key);
}

#define CHECK_ISA \
    if (!ondie_isa_runs(isa)) return ONDIE_NO_ISA

int ondie_accumulate(int isa, int kind, float *sum, const void *x, size_t n) {
    CHECK_ISA;
    tables[isa]->accumulate(sum, x, kind, n);
    return ONDIE_OK;
}

int ondie_scale(int isa, float *g, size_t n, float factor) {
    CHECK_ISA;
    tables[isa]->scale(g, n, factor);
    return ONDIE_OK;
}

int ondie_unscale(int isa, float *g, size_t n, float factor, int32_t *found_inf) {
    CHECK_ISA;
    *found_inf = tables[isa]->unscale(g, n, factor);
    return ONDIE_OK;
}

int ondie_squares(int isa, const float *g, size_t n, double *partial) {
    CHECK_ISA;
    tables[isa]->squares(g, n, partial);
    return ONDIE_OK;
}

#define CAST(name, from, to)                                      \
    int ondie_##name(int isa, const from *x, to *y, size_t n) {   \
        CHECK_ISA;                                                \
        tables[isa]->name(x, y, n);                               \
        return ONDIE_OK;                                          \
    }

CAST(to_fp16, float, uint16_t)
CAST(to_bf16, float, uint16_t)
CAST(from_fp16, uint16_t, float)
CAST(from_bf16, uint16_t, float)

/* Job of a memory-limit measurement: its arrays as a part, and the bytes per parameter of each. */
typedef struct {
    const ondie_table *table;
    const ondie_part *part;
    size_t each[5];
    const int32_t *bytes;
} limiting;

static void limit_some(void *job, size_t from, size_t to) {
    const limiting *const l = job;
    const size_t end = to * ONDIE_GRAIN < l->part->n ? to * ONDIE_GRAIN : l->part->n;
    const ondie_part p = cut(l->part, from * ONDIE_GRAIN, end, l->each);
    if (l->bytes)
        l->table->limit(&p, l->bytes);
    else if (p.b)
        l->table->limit28(p.w, p.g, p.a, p.b, p.n);
    else if (p.a)
        l->table->limit20(p.w, p.g, p.a, p.n);
    else
        l->table->limit12(p.w, p.g, p.n);
}

static int limit(int isa, int threads, const ondie_part *part, const int32_t *bytes) {
    CHECK_ISA;
    limiting l = {tables[isa], part, {4, 4, 4, 4, 0}, bytes};
    for (int i = 0; bytes && i < 5; i++) l.each[i] = (size_t)bytes[i];
    ondie_divide(grains(part->n), paying(part->n, threads), limit_some, &l);
    return ONDIE_OK;
}

int ondie_limit28(int isa, int threads, float *w, const float *g, float *m, float *v, size_t n) {
    return limit(isa, threads, &(ondie_part){.w = w, .g = (void *)g, .a = m, .b = v, .n = n}, 0);
}

int ondie_limit20(int isa, int threads, float *w, const float *g, float *m, size_t n) {
    return limit(isa, threads, &(ondie_part){.w = w, .g = (void *)g, .a = m, .n = n}, 0);
}

int ondie_limit12(int isa, int threads, float *w, const float *g, size_t n) {
    return limit(isa, threads, &(ondie_part){.w = w, .g = (void *)g, .n = n}, 0);
}

int ondie_limit(int isa, int threads, const ondie_part *part, const int32_t *bytes) {
    return limit(isa, threads, part, bytes);
}

size_t ondie_ldpc_memory(const ondie_ldpc *code) { return tables[ONDIE_BASE]->ldpc_memory(code); }

int ondie_ldpc_encode(int isa, const ondie_ldpc *code, const uint8_t *data, uint8_t *words,
                      size_t count, uint8_t *memory) {
    CHECK_ISA;
    tables[isa]->ldpc_encode(code, data, words, count, memory);
    return ONDIE_OK;
}

int ondie_ldpc_decode(int isa, const ondie_ldpc *code, const uint8_t *words, const int8_t *soft,
                      int iterations, int flips, uint8_t *corrected, ondie_ldpc_result *results,
                      size_t count, uint8_t *memory) {
    CHECK_ISA;
    tables[isa]->ldpc_decode(code, words, soft, iterations, flips, corrected, results, count,
                             memory);
    return ONDIE_OK;
}
