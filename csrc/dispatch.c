/* Owns: the public functions: they check isa, form and overlap, then call the chosen table.
 * Does not: compute, or choose an instruction set for the caller.
 * Source: own.
 */
#include "isa.h"

static const ondie_table *const tables[ONDIE_ISAS] = {
    &ondie_table_base,
#if defined(__x86_64__)
    &ondie_table_avx2,
    &ondie_table_avx512,
#endif
};

int ondie_isa_runs(int isa) {
    if (isa < 0 || isa >= ONDIE_ISAS || !tables[isa]) return 0;
#if defined(__x86_64__)
    if (isa == ONDIE_AVX2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (isa == ONDIE_AVX512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return 1;
}

/* Bytes per element of w, g, the states and out. */
static const size_t bytes_of[ONDIE_VARIANTS][4] = {
    [ONDIE_CANONICAL] = {4, 4, 4, 0}, [ONDIE_TORCH] = {4, 4, 4, 0},
    [ONDIE_FP16] = {4, 2, 4, 2},      [ONDIE_BF16] = {4, 2, 4, 2},
    [ONDIE_BF16_ALL] = {2, 2, 2, 0},  [ONDIE_BF16_STOCHASTIC] = {2, 2, 2, 0},
    [ONDIE_CODES] = {4, 4, 1, 0},
};

typedef struct {
    char *at;
    size_t bytes;
} range;

enum { ARRAYS = 7 };

/* The memory of a part, unused arrays with no bytes. */
static void ranges(const ondie_part *p, const size_t *each, range *r) {
    const size_t scales = (p->n + ONDIE_CODE_BLOCK - 1) / ONDIE_CODE_BLOCK * 4;
    const range all[ARRAYS] = {
        {p->w, p->n * each[0]}, {p->g, p->n * each[1]},     {p->a, p->n * each[2]},
        {p->b, p->n * each[2]}, {p->out, p->n * each[3]},   {(char *)p->scale_a, scales},
        {(char *)p->scale_b, scales},
    };
    for (int i = 0; i < ARRAYS; i++) {
        r[i] = all[i];
        if (!r[i].at) r[i].bytes = 0;
    }
}

static int overlap(const range *r, int n) {
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++)
            if (r[i].bytes && r[j].bytes && (uintptr_t)r[i].at < (uintptr_t)r[j].at + r[j].bytes &&
                (uintptr_t)r[j].at < (uintptr_t)r[i].at + r[i].bytes)
                return 1;
    return 0;
}

enum { SLICE = 1024, LINE = 64 };

/* Elements from..to of a part. */
static ondie_part slice(const ondie_part *p, const size_t *each, size_t from, size_t to) {
    ondie_part s = *p;
    s.w = (char *)p->w + from * each[0];
    s.g = (char *)p->g + from * each[1];
    if (p->a) s.a = (char *)p->a + from * each[2];
    if (p->b) s.b = (char *)p->b + from * each[2];
    if (p->out) s.out = (char *)p->out + from * each[3];
    if (p->scale_a) s.scale_a = p->scale_a + from / ONDIE_CODE_BLOCK;
    if (p->scale_b) s.scale_b = p->scale_b + from / ONDIE_CODE_BLOCK;
    s.n = to - from;
    s.first = p->first + from;
    return s;
}

/* Ask for the memory of elements from..to of a part. */
static void ask(const ondie_part *p, const size_t *each, size_t from, size_t to) {
    range r[ARRAYS];
    if (to > p->n) to = p->n;
    if (from >= to) return;
    const ondie_part s = slice(p, each, from, to);
    ranges(&s, each, r);
    for (int i = 0; i < ARRAYS; i++)
        for (size_t at = 0; at < r[i].bytes; at += LINE) __builtin_prefetch(r[i].at + at, 1, 2);
}

int ondie_update(int isa, int op, int variant, const ondie_part *parts, size_t count,
                 const float *coef, const ondie_codes *codes, uint32_t key) {
    range r[ARRAYS];
    if (!ondie_isa_runs(isa)) return ONDIE_NO_ISA;
    if (op < 0 || op >= ONDIE_OPS || variant < 0 || variant >= ONDIE_VARIANTS)
        return ONDIE_NO_UPDATE;
    const ondie_update_function update = tables[isa]->update[op][variant];
    if (!update) return ONDIE_NO_UPDATE;
    const size_t *each = bytes_of[variant];
    for (size_t i = 0; i < count; i++) {
        ranges(&parts[i], each, r);
        if (overlap(r, ARRAYS)) return ONDIE_OVERLAP;
    }
    for (size_t i = 0; i < count; i++) {
        const ondie_part *p = &parts[i];
        if (i + 1 == count && (p->first >> 32) == ((p->first + p->n) >> 32)) {
            update(p, coef, codes, key);
            continue;
        }
        for (size_t from = 0, to; from < p->n; from = to) {
            const uint64_t same = (1ull << 32) - (uint32_t)(p->first + from); /* upper half */
            to = p->n - from < SLICE ? p->n : from + SLICE;
            if (variant == ONDIE_BF16_STOCHASTIC && to - from > same) to = from + (size_t)same;
            if (i + 1 < count) ask(p + 1, each, from, p->n == to ? p[1].n : to);
            const ondie_part s = slice(p, each, from, to);
            update(&s, coef, codes, key);
        }
    }
    return ONDIE_OK;
}

#define CHECK_ISA \
    if (!ondie_isa_runs(isa)) return ONDIE_NO_ISA

int ondie_update_one(int isa, int op, int variant, void *w, void *g, void *a, void *b, void *out,
                     void *scale_a, void *scale_b, size_t n, uint64_t first, const float *coef,
                     const ondie_codes *codes, uint32_t key) {
    const ondie_part p = {w, g, a, b, out, scale_a, scale_b, n, first};
    return ondie_update(isa, op, variant, &p, 1, coef, codes, key);
}

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

int ondie_limit28(int isa, float *w, const float *g, float *m, float *v, size_t n) {
    CHECK_ISA;
    tables[isa]->limit28(w, g, m, v, n);
    return ONDIE_OK;
}

int ondie_limit20(int isa, float *w, const float *g, float *m, size_t n) {
    CHECK_ISA;
    tables[isa]->limit20(w, g, m, n);
    return ONDIE_OK;
}

int ondie_limit12(int isa, float *w, const float *g, size_t n) {
    CHECK_ISA;
    tables[isa]->limit12(w, g, n);
    return ONDIE_OK;
}

int ondie_limit(int isa, const ondie_part *part, const int32_t *bytes) {
    CHECK_ISA;
    tables[isa]->limit(part, bytes);
    return ONDIE_OK;
}
