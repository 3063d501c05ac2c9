/* Owns: AdaGrad over flat FP32 arrays, canonical and torch form (formulas: ondie.h).
 * Does not: fold hyperparameters, check arguments, or know about threads.
 * Source: Duchi et al. 2011; operation order of torch's fused CPU Adagrad, observed.
 */
#include <math.h>

#include "isa.h"

LOOP FN(adagrad_loop)(float *restrict w, const float *restrict g, float *restrict v, size_t n,
                      const float *c, int with_l2, int fused) {
    const float lr = c[0], l2 = c[1], eps = c[2];
    for (size_t i = 0; i < n; i++) {
        float gi = g[i];
        if (with_l2) gi = fused ? fmaf(w[i], l2, gi) : gi + l2 * w[i];
        const float vi = fused ? fmaf(gi, gi, v[i]) : v[i] + gi * gi;
        v[i] = vi;
        const float root = sqrtf(vi) + eps;
        w[i] = fused ? w[i] - (lr * gi) / root : w[i] - lr * (gi / root);
    }
}

static void FN(adagrad_canonical)(float *w, const float *g, float *v, size_t n, const float *c) {
    if (c[1] != 0.0f)
        FN(adagrad_loop)(w, g, v, n, c, 1, 0);
    else
        FN(adagrad_loop)(w, g, v, n, c, 0, 0);
}

static void FN(adagrad_torch)(float *w, const float *g, float *v, size_t n, const float *c) {
    if (c[1] != 0.0f)
        FN(adagrad_loop)(w, g, v, n, c, 1, 1);
    else
        FN(adagrad_loop)(w, g, v, n, c, 0, 1);
}
