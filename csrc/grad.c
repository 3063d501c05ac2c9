/* Gradient operations before the update: scaling, the non-finite check, sums of squares.
 *
 * This file does not add the partial sums and does not compute the clip coefficient
 * (kernels/grad.py).
 * Source: this project. The fixed lanes give the same norm at every vector width.
 */
#include <string.h>

#include "half.h"
#include "isa.h"

static void FN(scale)(float *restrict g, size_t n, float factor) {
    for (size_t i = 0; i < n; i++) g[i] = g[i] * factor;
}

static void FN(accumulate)(float *restrict sum, const void *restrict x, int kind, size_t n) {
    const float *const wide = x;
    const uint16_t *const half = x;
    if (kind == ONDIE_FP16)
        for (size_t i = 0; i < n; i++) sum[i] += from_fp16(half[i]);
    else if (kind == ONDIE_BF16)
        for (size_t i = 0; i < n; i++) sum[i] += from_bf16(half[i]);
    else
        for (size_t i = 0; i < n; i++) sum[i] += wide[i];
}

static int32_t FN(unscale)(float *restrict g, size_t n, float factor) {
    int32_t found = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, &g[i], 4);
        found |= -((bits & 0x7f800000) == 0x7f800000);
        g[i] = g[i] * factor;
    }
    return found != 0;
}

/* FP64 numbers in one vector register of the instruction set. */
#if defined(__AVX512F__)
#define ONDIE_WIDTH 8
#elif defined(__AVX__)
#define ONDIE_WIDTH 4
#else
#define ONDIE_WIDTH 2
#endif

static double FN(square_block)(const float *x, size_t n) {
    typedef double lanes __attribute__((vector_size(8 * ONDIE_WIDTH)));
    typedef float part __attribute__((vector_size(4 * ONDIE_WIDTH)));
    enum { PARTS = ONDIE_NORM_LANES / ONDIE_WIDTH };
    lanes sum[PARTS] = {{0}};
    double lane[ONDIE_NORM_LANES];
    size_t i = 0;
    for (; i + ONDIE_NORM_LANES <= n; i += ONDIE_NORM_LANES) {
        for (int p = 0; p < PARTS; p++) {
            part f;
            memcpy(&f, x + i + p * ONDIE_WIDTH, sizeof f);
            const lanes d = __builtin_convertvector(f, lanes);
            sum[p] += d * d;
        }
    }
    memcpy(lane, sum, sizeof lane);
    for (size_t j = 0; i + j < n; j++) lane[j] += (double)x[i + j] * (double)x[i + j];
    for (int half = ONDIE_NORM_LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) lane[j] += lane[j + half];
    return lane[0];
}
#undef ONDIE_WIDTH

static void FN(squares)(const float *g, size_t n, double *partial) {
    for (size_t begin = 0; begin < n; begin += ONDIE_NORM_BLOCK) {
        const size_t left = n - begin;
        *partial++ = FN(square_block)(g + begin, left < ONDIE_NORM_BLOCK ? left : ONDIE_NORM_BLOCK);
    }
}
