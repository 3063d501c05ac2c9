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
    if (isa == ONDIE_AVX2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("f16c");
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

/* Do two arrays of a part share a byte? */
static int overlap(const ondie_part *p, const size_t *each) {
    const size_t n = p->n, scales = (n + ONDIE_CODE_BLOCK - 1) / ONDIE_CODE_BLOCK * 4;
    const range all[ARRAYS] = {
        {p->w, n * each[0]},   {p->g, n * each[1]},   {p->a, n * each[2]},        {p->b, n * each[2]},
        {p->out, n * each[3]}, {(char *)p->scale_a, scales}, {(char *)p->scale_b, scales},
    };
    for (int i = 1; i < ARRAYS; i++) {
        if (!all[i].at) continue;
        for (int j = 0; j < i; j++)
            if (all[j].at && (uintptr_t)all[i].at < (uintptr_t)all[j].at + all[j].bytes &&
                (uintptr_t)all[j].at < (uintptr_t)all[i].at + all[i].bytes)
                return 1;
    }
    return 0;
}

int ondie_update(int isa, int op, int variant, const ondie_part *parts, size_t count,
                 const float *coef, const ondie_codes *codes, uint32_t key) {
    if (!ondie_isa_runs(isa)) return ONDIE_NO_ISA;
    if (op < 0 || op >= ONDIE_OPS || variant < 0 || variant >= ONDIE_VARIANTS)
        return ONDIE_NO_UPDATE;
    const ondie_update_function update = tables[isa]->update[op][variant];
    if (!update) return ONDIE_NO_UPDATE;
    for (size_t i = 0; i < count; i++)
        if (overlap(&parts[i], bytes_of[variant])) return ONDIE_OVERLAP;
    for (size_t i = 0; i < count; i++) {
        ondie_part p = parts[i];
        /* The loops count in 32 bits: elements with one upper half at a time. */
        while (variant == ONDIE_BF16_STOCHASTIC && p.n > (1ull << 32) - (uint32_t)p.first) {
            const uint64_t left = p.n, n = (1ull << 32) - (uint32_t)p.first;
            p.n = n;
            update(&p, 0, coef, codes, key);
            p.w = (char *)p.w + 2 * n;
            p.g = (char *)p.g + 2 * n;
            if (p.a) p.a = (char *)p.a + 2 * n;
            if (p.b) p.b = (char *)p.b + 2 * n;
            p.n = left - n;
            p.first += n;
        }
        update(&p, i + 1 < count ? &parts[i + 1] : 0, coef, codes, key);
    }
    return ONDIE_OK;
}

int ondie_update_one(int isa, int op, int variant, void *w, void *g, void *a, void *b, void *out,
                     void *scale_a, void *scale_b, size_t n, uint64_t first, const float *coef,
                     const ondie_codes *codes, uint32_t key) {
    const ondie_part p = {w, g, a, b, out, scale_a, scale_b, n, first};
    return ondie_update(isa, op, variant, &p, 1, coef, codes, key);
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
