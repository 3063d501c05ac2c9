/* Updates over arrays: each operation with each storage variant.
 *
 * This file does not contain the operations (adam.c, sgd.c, adagrad.c, on_die.c), does not check
 * arguments and does not use threads.
 * Source: this project. The constants of the hash come from Wellons' search for 32-bit bijections
 * with low bias.
 */
#include "adagrad.c"
#include "adam.c"
#include "cast.c"
#include "codes.c"
#include "half.h"
#include "isa.h"
#include "on_die.c"
#include "sgd.c"

#ifndef ONDIE_UPDATE_KINDS
#define ONDIE_UPDATE_KINDS
enum kind { F32, H16, B16 };

/* Operations, with one value for each form of the arithmetic. DIE_..._n takes n Newton steps. */
enum what {
    SGD, SGD_TORCH, MOMENTUM, MOMENTUM_TORCH, NESTEROV, NESTEROV_TORCH,
    ADAGRAD, ADAGRAD_TORCH, ADAM, ADAM_TORCH_M, ADAM_TORCH_G,
    DIE_ADAM_0, DIE_ADAM_1, DIE_ADAM_2, DIE_ADAM_3,
    DIE_ADAGRAD_0, DIE_ADAGRAD_1, DIE_ADAGRAD_2, DIE_ADAGRAD_3
};
enum { MOST_COEFS = 10, STEP = 64, LINE = 64, TILE = 1024 };

/* Return the number of coefficients that an operation reads. */
static inline int coefs(int what) {
    if (what == SGD || what == SGD_TORCH) return 2;
    if (what == MOMENTUM || what == MOMENTUM_TORCH) return 4;
    if (what == NESTEROV || what == NESTEROV_TORCH) return 5;
    if (what == ADAGRAD || what == ADAGRAD_TORCH || what >= DIE_ADAGRAD_0) return 3;
    return what >= DIE_ADAM_0 ? 8 : 10;
}
#endif

/* Return 32 random bits of element i. */
static inline uint32_t FN(draw)(uint32_t i, uint32_t key) {
    uint32_t x = i + key;
    x = (x ^ (x >> 16)) * 0x21f0aaadu;
    x = (x ^ (x >> 15)) * 0xd35a2d97u;
    return x ^ (x >> 15);
}

static inline __attribute__((always_inline)) float FN(load)(const void *x, size_t i, int kind) {
    return kind == F32 ? ((const float *)x)[i] : from_bf16(((const uint16_t *)x)[i]);
}

static inline __attribute__((always_inline)) void FN(store)(void *x, size_t i, float y, int kind,
                                                            int random, uint32_t draw) {
    if (kind == F32)
        ((float *)x)[i] = y;
    else
        ((uint16_t *)x)[i] = random ? bf16_with(y, draw & 0xffffu) : to_bf16(y);
}

static inline __attribute__((always_inline)) float FN(at)(int what, float w, float g, float *a,
                                                          float *b, const float *c, int l2) {
    switch (what) {
    case SGD: return FN(sgd)(w, g, c, 0, l2);
    case SGD_TORCH: return FN(sgd)(w, g, c, 1, l2);
    case MOMENTUM: return FN(momentum)(w, g, a, c, 0, l2, 0);
    case MOMENTUM_TORCH: return FN(momentum)(w, g, a, c, 1, l2, 0);
    case NESTEROV: return FN(momentum)(w, g, a, c, 0, l2, 1);
    case NESTEROV_TORCH: return FN(momentum)(w, g, a, c, 1, l2, 1);
    case ADAGRAD: return FN(adagrad)(w, g, a, c, 0, l2);
    case ADAGRAD_TORCH: return FN(adagrad)(w, g, a, c, 1, l2);
    case ADAM_TORCH_M: return FN(adam_torch)(w, g, a, b, c, l2, 1);
    case ADAM_TORCH_G: return FN(adam_torch)(w, g, a, b, c, l2, 0);
    case DIE_ADAM_0: return FN(die_adam)(w, g, a, b, c, l2, 0);
    case DIE_ADAM_1: return FN(die_adam)(w, g, a, b, c, l2, 1);
    case DIE_ADAM_2: return FN(die_adam)(w, g, a, b, c, l2, 2);
    case DIE_ADAM_3: return FN(die_adam)(w, g, a, b, c, l2, 3);
    case DIE_ADAGRAD_0: return FN(die_adagrad)(w, g, a, c, l2, 0);
    case DIE_ADAGRAD_1: return FN(die_adagrad)(w, g, a, c, l2, 1);
    case DIE_ADAGRAD_2: return FN(die_adagrad)(w, g, a, c, l2, 2);
    case DIE_ADAGRAD_3: return FN(die_adagrad)(w, g, a, c, l2, 3);
    default: return FN(adam_canonical)(w, g, a, b, c, l2);
    }
}

static inline __attribute__((always_inline)) size_t FN(bytes)(int kind) {
    return kind == F32 ? 4 : 2;
}

/* Prefetch `count` elements starting at `from`. */
static inline __attribute__((always_inline)) void FN(ask)(const void *x, size_t from, size_t count,
                                                          int kind) {
    for (size_t at = 0; at < count * FN(bytes)(kind); at += LINE)
        __builtin_prefetch((const char *)x + from * FN(bytes)(kind) + at, 0, 3);
}

/* Update a part. Every flag is a constant in each caller, so the compiler specializes the loop. If
 * there is a next part, the loop prefetches one cache line of each of its arrays per step. Larger
 * prefetch pieces arrive in bursts and stall the updates between them. */
LOOP FN(loop)(const ondie_part *p, const ondie_part *next, const float *coef, uint32_t key,
              int what, int states, int l2, int kind, int random) {
    float c[MOST_COEFS];
    char *restrict w = p->w, *restrict a = p->a, *restrict b = p->b;
    const char *restrict g = p->g;
    const size_t n = p->n;
    const uint32_t first = (uint32_t)p->first;
    for (int j = 0; j < coefs(what); j++) c[j] = coef[j];
    if (random) key += (uint32_t)(p->first >> 32) * 0x85ebca6bu;
#define BODY(start, count)                                                                        \
    for (size_t k = 0; k < (count); k++) {                                                        \
        const size_t i = (start) + k;                                                             \
        float s = states > 0 ? FN(load)(a, i, kind) : 0.0f;                                       \
        float t = states > 1 ? FN(load)(b, i, kind) : 0.0f;                                       \
        const float y = FN(at)(what, FN(load)(w, i, kind), FN(load)(g, i, kind), &s, &t, c, l2);  \
        const uint32_t r = random ? FN(draw)(first + (uint32_t)i, key) : 0;                       \
        if (states > 0) FN(store)(a, i, s, kind, random, r >> 8);                                 \
        if (states > 1) FN(store)(b, i, t, kind, random, r >> 16);                                \
        FN(store)(w, i, y, kind, random, r);                                                      \
    }
    const size_t step = LINE / FN(bytes)(kind);
    size_t from = 0;
    if (next)
        for (; from + step <= n; from += step) {
            if (from < next->n) {
                FN(ask)(next->w, from, step, kind);
                FN(ask)(next->g, from, step, kind);
                if (states > 0) FN(ask)(next->a, from, step, kind);
                if (states > 1) FN(ask)(next->b, from, step, kind);
            }
            BODY(from, step)
        }
    BODY(from, n - from)
#undef BODY
}

#define PARAMETERS                                                                      \
    const ondie_part *p, const ondie_part *next, const float *c, const ondie_codes *maps, \
        uint32_t key
#define UNUSED (void)maps, (void)key

#define STORED(name, what, states, at_l2, kind, random)                                 \
    static void FN(name)(PARAMETERS) {                                                  \
        UNUSED;                                                                         \
        if (c[at_l2] != 0.0f)                                                           \
            FN(loop)(p, next, c, key, what, states, 1, kind, random);                   \
        else                                                                            \
            FN(loop)(p, next, c, key, what, states, 0, kind, random);                   \
    }

/* Return the number of elements of the block that begins at `from`. */
static inline size_t FN(block_of)(size_t n, size_t from) {
    return n - from < ONDIE_CODE_BLOCK ? n - from : ONDIE_CODE_BLOCK;
}

/* Update with 8-bit states, block by block; the decoded states are on the stack. A block is encoded
 * after the next block is updated, so its scale is available by then. */
#define CODED(name, plain, states, sign_a)                                              \
    static void FN(name)(PARAMETERS) {                                                  \
        float a[2][ONDIE_CODE_BLOCK] __attribute__((aligned(64)));                      \
        float b[2][ONDIE_CODE_BLOCK] __attribute__((aligned(64)));                      \
        uint8_t *const qa = p->a, *const qb = p->b;                                     \
        const size_t blocks = (p->n + ONDIE_CODE_BLOCK - 1) / ONDIE_CODE_BLOCK;         \
        for (size_t block = 0; block <= blocks; block++) {                              \
            const size_t i = block * ONDIE_CODE_BLOCK, before = i - ONDIE_CODE_BLOCK;   \
            const int at = block & 1;                                                   \
            if (block < blocks) {                                                       \
                const size_t n = FN(block_of)(p->n, i);                                 \
                const ondie_part q = {.w = (float *)p->w + i, .g = (float *)p->g + i,   \
                                      .a = a[at], .b = b[at], .n = n};                  \
                FN(decode)(qa + i, p->scale_a[block], a[at], n, &maps[sign_a], !(sign_a)); \
                if (states > 1)                                                         \
                    FN(decode)(qb + i, p->scale_b[block], b[at], n, &maps[1], 0);       \
                FN(plain)(&q, 0, c, maps, key);                                         \
                p->scale_a[block] = FN(scale_of)(a[at], n);                             \
                if (states > 1) p->scale_b[block] = FN(scale_of)(b[at], n);             \
                for (size_t k = 0; next && i < next->n && k < ONDIE_CODE_BLOCK; k += STEP) { \
                    FN(ask)(next->w, i + k, STEP, F32);                                 \
                    FN(ask)(next->g, i + k, STEP, F32);                                 \
                    __builtin_prefetch((const char *)next->a + i + k, 0, 3);            \
                    if (states > 1) __builtin_prefetch((const char *)next->b + i + k, 0, 3); \
                }                                                                       \
            }                                                                           \
            if (block) {                                                                \
                const size_t n = FN(block_of)(p->n, before);                            \
                FN(encode)(a[!at], p->scale_a[block - 1], qa + before, n, &maps[sign_a], \
                           !(sign_a));                                                  \
                if (states > 1)                                                         \
                    FN(encode)(b[!at], p->scale_b[block - 1], qb + before, n, &maps[1], 0); \
            }                                                                           \
        }                                                                               \
    }

/* Update with a 16-bit gradient and copy, in tiles that fit into the first-level cache. */
#define HALF(name, kind, K, plain, states)                                              \
    static void FN(name)(PARAMETERS) {                                                  \
        float g[TILE] __attribute__((aligned(64)));                                     \
        for (size_t i = 0; i < p->n; i += TILE) {                                       \
            const size_t n = p->n - i < TILE ? p->n - i : TILE;                         \
            float *const w = (float *)p->w + i;                                         \
            const ondie_part q = {.w = w, .g = g, .n = n,                               \
                                  .a = states > 0 ? (float *)p->a + i : 0,              \
                                  .b = states > 1 ? (float *)p->b + i : 0};             \
            FN(from_##kind)((const uint16_t *)p->g + i, g, n);                          \
            FN(plain)(&q, 0, c, maps, key);                                             \
            FN(to_##kind)(w, (uint16_t *)p->out + i, n);                                \
            for (size_t k = i; next && k < next->n && k < i + TILE; k += STEP) {        \
                FN(ask)(next->w, k, STEP, F32);                                         \
                FN(ask)(next->g, k, STEP, K);                                           \
                if (states > 0) FN(ask)(next->a, k, STEP, F32);                         \
                if (states > 1) FN(ask)(next->b, k, STEP, F32);                         \
                FN(ask)(next->out, k, STEP, K);                                         \
            }                                                                           \
        }                                                                               \
    }

#define NARROW(name, what, states, at_l2)                                               \
    HALF(name##_fp16, fp16, H16, name##_plain, states)                                  \
    HALF(name##_bf16, bf16, B16, name##_plain, states)                                  \
    STORED(name##_bf16_all, what, states, at_l2, B16, 0)                                \
    STORED(name##_stochastic, what, states, at_l2, B16, 1)

#define PLAIN(name, what, states, at_l2) \
    STORED(name, what, states, at_l2, F32, 0)

PLAIN(sgd_plain, SGD, 0, 1)
PLAIN(sgd_torch_plain, SGD_TORCH, 0, 1)
NARROW(sgd, SGD, 0, 1)
PLAIN(momentum_plain, MOMENTUM, 1, 1)
PLAIN(momentum_torch_plain, MOMENTUM_TORCH, 1, 1)
NARROW(momentum, MOMENTUM, 1, 1)
CODED(momentum_codes, momentum_plain, 1, 0)
PLAIN(nesterov_plain, NESTEROV, 1, 1)
PLAIN(nesterov_torch_plain, NESTEROV_TORCH, 1, 1)
NARROW(nesterov, NESTEROV, 1, 1)
CODED(nesterov_codes, nesterov_plain, 1, 0)
PLAIN(adagrad_plain, ADAGRAD, 1, 1)
PLAIN(adagrad_torch_plain, ADAGRAD_TORCH, 1, 1)
NARROW(adagrad, ADAGRAD, 1, 1)
CODED(adagrad_codes, adagrad_plain, 1, 1)
PLAIN(adam_plain, ADAM, 2, 5)
PLAIN(adam_torch_m, ADAM_TORCH_M, 2, 5)
PLAIN(adam_torch_g, ADAM_TORCH_G, 2, 5)
NARROW(adam, ADAM, 2, 5)
CODED(adam_codes, adam_plain, 2, 0)

static void FN(adam_torch_plain)(PARAMETERS) {
    if (c[1] < 0.5f)
        FN(adam_torch_m)(p, next, c, maps, key);
    else
        FN(adam_torch_g)(p, next, c, maps, key);
}

/* The number of Newton steps is a coefficient: 0 to 3. */
#define DIE(name, what, states, at_l2, at_newton)                                       \
    PLAIN(name##_0, what##_0, states, at_l2)                                            \
    PLAIN(name##_1, what##_1, states, at_l2)                                            \
    PLAIN(name##_2, what##_2, states, at_l2)                                            \
    PLAIN(name##_3, what##_3, states, at_l2)                                            \
    static void FN(name##_plain)(PARAMETERS) {                                          \
        if (c[at_newton] < 1.0f)                                                        \
            FN(name##_0)(p, next, c, maps, key);                                        \
        else if (c[at_newton] < 2.0f)                                                   \
            FN(name##_1)(p, next, c, maps, key);                                        \
        else if (c[at_newton] < 3.0f)                                                   \
            FN(name##_2)(p, next, c, maps, key);                                        \
        else                                                                            \
            FN(name##_3)(p, next, c, maps, key);                                        \
    }

DIE(die_adam, DIE_ADAM, 2, 5, 4)
DIE(die_adagrad, DIE_ADAGRAD, 1, 1, 2)

#define ALL(name)                                                                       \
    {FN(name##_plain), FN(name##_torch_plain), FN(name##_fp16), FN(name##_bf16),        \
     FN(name##_bf16_all), FN(name##_stochastic), FN(name##_codes)}

static const ondie_update_function FN(updates)[ONDIE_OPS][ONDIE_VARIANTS] = {
    [ONDIE_SGD] = {FN(sgd_plain), FN(sgd_torch_plain), FN(sgd_fp16), FN(sgd_bf16),
                   FN(sgd_bf16_all), FN(sgd_stochastic), 0},
    [ONDIE_MOMENTUM] = ALL(momentum),
    [ONDIE_NESTEROV] = ALL(nesterov),
    [ONDIE_ADAM] = ALL(adam),
    [ONDIE_ADAGRAD] = ALL(adagrad),
    [ONDIE_DIE_ADAM] = {FN(die_adam_plain)},
    [ONDIE_DIE_ADAGRAD] = {FN(die_adagrad_plain)},
};
#undef ALL
#undef DIE
#undef PLAIN
#undef NARROW
#undef HALF
#undef CODED
#undef STORED
#undef UNUSED
#undef PARAMETERS
