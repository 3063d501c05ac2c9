/* Owns: SGD, momentum and Nesterov over flat FP32 arrays, canonical and torch form (formulas: ondie.h).
 * Does not: fold hyperparameters, check arguments, or know about threads.
 * Source: Sutskever et al. 2013 in PyTorch's convention; operation order of torch's fused CPU SGD, observed.
 */
#include "isa.h"

LOOP FN(sgd_loop)(float *restrict w, const float *restrict g, size_t n, const float *c, int fused,
                  int with_l2) {
    const float lr = c[0], l2 = c[1];
    for (size_t i = 0; i < n; i++) {
        const float gi = with_l2 ? mad(w[i], l2, g[i], fused) : g[i];
        w[i] = mad(gi, -lr, w[i], fused);
    }
}

LOOP FN(momentum_loop)(float *restrict w, const float *restrict g, float *restrict m, size_t n,
                       const float *c, int fused, int with_l2, int nesterov) {
    const float lr = c[0], l2 = c[1], mu = c[2], c1 = c[3], look = nesterov ? c[4] : 0.0f;
    for (size_t i = 0; i < n; i++) {
        const float gi = with_l2 ? mad(w[i], l2, g[i], fused) : g[i];
        const float mi = mad(c1, gi, mu * m[i], fused);
        m[i] = mi;
        w[i] = mad(nesterov ? mad(mi, look, gi, fused) : mi, -lr, w[i], fused);
    }
}

#define SGD(name, fused)                                                        \
    static void FN(name)(float *w, const float *g, size_t n, const float *c) {  \
        if (c[1] != 0.0f)                                                       \
            FN(sgd_loop)(w, g, n, c, fused, 1);                                 \
        else                                                                    \
            FN(sgd_loop)(w, g, n, c, fused, 0);                                 \
    }

#define MOMENTUM(name, fused, nesterov)                                                  \
    static void FN(name)(float *w, const float *g, float *m, size_t n, const float *c) { \
        if (c[1] != 0.0f)                                                                \
            FN(momentum_loop)(w, g, m, n, c, fused, 1, nesterov);                        \
        else                                                                             \
            FN(momentum_loop)(w, g, m, n, c, fused, 0, nesterov);                        \
    }

SGD(sgd_canonical, 0)
SGD(sgd_torch, 1)
MOMENTUM(momentum_canonical, 0, 0)
MOMENTUM(momentum_torch, 1, 0)
MOMENTUM(nesterov_canonical, 0, 1)
MOMENTUM(nesterov_torch, 1, 1)
#undef SGD
#undef MOMENTUM
