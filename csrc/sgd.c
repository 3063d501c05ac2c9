/* Owns: SGD, momentum and Nesterov over flat FP32 arrays, canonical and torch form (formulas: ondie.h).
 * Does not: fold hyperparameters, check arguments, or know about threads.
 * Source: Sutskever et al. 2013 in PyTorch's convention; operation order of torch's fused CPU SGD, observed.
 */
#include <math.h>

#include "isa.h"

LOOP FN(sgd_loop)(float *restrict w, const float *restrict g, size_t n, const float *c,
                  int with_l2, int fused) {
    const float lr = c[0], l2 = c[1];
    for (size_t i = 0; i < n; i++) {
        float gi = g[i];
        if (with_l2) gi = fused ? fmaf(w[i], l2, gi) : gi + l2 * w[i];
        w[i] = fused ? fmaf(gi, -lr, w[i]) : w[i] - lr * gi;
    }
}

LOOP FN(momentum_loop)(float *restrict w, const float *restrict g, float *restrict m, size_t n,
                       const float *c, int with_l2, int fused, int nesterov) {
    const float lr = c[0], l2 = c[1], mu = c[2], c1 = c[3], look = nesterov ? c[4] : 0.0f;
    for (size_t i = 0; i < n; i++) {
        float gi = g[i];
        if (with_l2) gi = fused ? fmaf(w[i], l2, gi) : gi + l2 * w[i];
        const float mi = fused ? fmaf(c1, gi, mu * m[i]) : mu * m[i] + c1 * gi;
        m[i] = mi;
        float di = mi;
        if (nesterov) di = fused ? fmaf(mi, look, gi) : gi + look * mi;
        w[i] = fused ? fmaf(di, -lr, w[i]) : w[i] - lr * di;
    }
}

static void FN(sgd_canonical)(float *w, const float *g, size_t n, const float *c) {
    if (c[1] != 0.0f)
        FN(sgd_loop)(w, g, n, c, 1, 0);
    else
        FN(sgd_loop)(w, g, n, c, 0, 0);
}

static void FN(sgd_torch)(float *w, const float *g, size_t n, const float *c) {
    if (c[1] != 0.0f)
        FN(sgd_loop)(w, g, n, c, 1, 1);
    else
        FN(sgd_loop)(w, g, n, c, 0, 1);
}

#define MOMENTUM(name, fused, nesterov)                                                 \
    static void FN(name)(float *w, const float *g, float *m, size_t n, const float *c) { \
        if (c[1] != 0.0f)                                                               \
            FN(momentum_loop)(w, g, m, n, c, 1, fused, nesterov);                       \
        else                                                                            \
            FN(momentum_loop)(w, g, m, n, c, 0, fused, nesterov);                       \
    }

MOMENTUM(momentum_canonical, 0, 0)
MOMENTUM(momentum_torch, 1, 0)
MOMENTUM(nesterov_canonical, 0, 1)
MOMENTUM(nesterov_torch, 1, 1)
#undef MOMENTUM
