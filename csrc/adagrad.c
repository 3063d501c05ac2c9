/* Owns: AdaGrad over flat FP32 arrays, canonical and torch form (formulas: ondie.h).
 * Does not: fold hyperparameters, check arguments, or know about threads.
 * Source: Duchi et al. 2011; operation order of torch's fused CPU Adagrad, observed.
 */
#include "isa.h"

LOOP FN(adagrad_loop)(float *restrict w, const float *restrict g, float *restrict v, size_t n,
                      const float *c, int fused, int with_l2) {
    const float lr = c[0], l2 = c[1], eps = c[2];
    for (size_t i = 0; i < n; i++) {
        const float gi = with_l2 ? mad(w[i], l2, g[i], fused) : g[i];
        const float vi = mad(gi, gi, v[i], fused);
        v[i] = vi;
        w[i] = w[i] - (lr * gi) / (sqrtf(vi) + eps);
    }
}

#define ADAGRAD(name, fused)                                                             \
    static void FN(name)(float *w, const float *g, float *v, size_t n, const float *c) { \
        if (c[1] != 0.0f)                                                                \
            FN(adagrad_loop)(w, g, v, n, c, fused, 1);                                   \
        else                                                                             \
            FN(adagrad_loop)(w, g, v, n, c, fused, 0);                                   \
    }

ADAGRAD(adagrad_canonical, 0)
ADAGRAD(adagrad_torch, 1)
#undef ADAGRAD
