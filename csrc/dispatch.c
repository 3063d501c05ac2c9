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

/* Do any two of the arrays share a byte? Arrays have n elements of 4 bytes; unused ones are null. */
static int overlap(size_t n, const float *a, const float *b, const float *c, const float *d) {
    const uintptr_t at[4] = {(uintptr_t)a, (uintptr_t)b, (uintptr_t)c, (uintptr_t)d};
    const uintptr_t bytes = (uintptr_t)n * 4;
    for (int i = 0; i < 4; i++)
        for (int j = i + 1; j < 4; j++)
            if (at[i] && at[j] && at[i] < at[j] + bytes && at[j] < at[i] + bytes) return 1;
    return 0;
}

#define CHECK_ISA \
    if (!ondie_isa_runs(isa)) return ONDIE_NO_ISA
#define CHECK_FORM \
    if (form < 0 || form >= ONDIE_FORMS) return ONDIE_NO_FORM
#define CHECK_APART(a, b, c, d) \
    if (overlap(n, a, b, c, d)) return ONDIE_OVERLAP

int ondie_adam(int isa, int form, float *w, const float *g, float *m, float *v, size_t n,
               const float *coef) {
    CHECK_ISA;
    CHECK_FORM;
    CHECK_APART(w, g, m, v);
    tables[isa]->adam[form](w, g, m, v, n, coef);
    return ONDIE_OK;
}

int ondie_sgd(int isa, int form, float *w, const float *g, size_t n, const float *coef) {
    CHECK_ISA;
    CHECK_FORM;
    CHECK_APART(w, g, 0, 0);
    tables[isa]->sgd[form](w, g, n, coef);
    return ONDIE_OK;
}

#define ONE_STATE(name)                                                                      \
    int ondie_##name(int isa, int form, float *w, const float *g, float *state, size_t n,    \
                     const float *coef) {                                                    \
        CHECK_ISA;                                                                           \
        CHECK_FORM;                                                                          \
        CHECK_APART(w, g, state, 0);                                                         \
        tables[isa]->name[form](w, g, state, n, coef);                                       \
        return ONDIE_OK;                                                                     \
    }

ONE_STATE(momentum)
ONE_STATE(nesterov)
ONE_STATE(adagrad)

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
    CHECK_APART(w, g, m, v);
    tables[isa]->limit28(w, g, m, v, n);
    return ONDIE_OK;
}

int ondie_limit20(int isa, float *w, const float *g, float *m, size_t n) {
    CHECK_ISA;
    CHECK_APART(w, g, m, 0);
    tables[isa]->limit20(w, g, m, n);
    return ONDIE_OK;
}

int ondie_limit12(int isa, float *w, const float *g, size_t n) {
    CHECK_ISA;
    CHECK_APART(w, g, 0, 0);
    tables[isa]->limit12(w, g, n);
    return ONDIE_OK;
}
