/* Owns: Adam and AdamW over flat FP32 arrays, canonical and torch form (formulas: ondie.h).
 * Does not: fold hyperparameters, check arguments, or know about threads.
 * Source: Kingma & Ba 2015; Loshchilov & Hutter 2019; operation order of torch's fused CPU Adam, observed.
 */
#include "isa.h"

LOOP FN(adam_canonical_loop)(float *restrict w, const float *restrict g, float *restrict m,
                             float *restrict v, size_t n, const float *c, int with_l2) {
    const float beta1 = c[0], c1 = c[1], beta2 = c[2], c2 = c[3], eps = c[4];
    const float l2 = c[5], decay = c[6], step = c[7], root = c[8];
    for (size_t i = 0; i < n; i++) {
        const float gi = with_l2 ? g[i] + l2 * w[i] : g[i];
        const float mi = beta1 * m[i] + c1 * gi;
        const float vi = beta2 * v[i] + (c2 * gi) * gi;
        m[i] = mi;
        v[i] = vi;
        w[i] = decay * w[i] - step * (mi / (sqrtf(vi) * root + eps));
    }
}

static void FN(adam_canonical)(float *w, const float *g, float *m, float *v, size_t n,
                               const float *c) {
    if (c[5] != 0.0f)
        FN(adam_canonical_loop)(w, g, m, v, n, c, 1);
    else
        FN(adam_canonical_loop)(w, g, m, v, n, c, 0);
}

/* torch interpolates from the nearer end: from m below weight 1/2, from g above. */
LOOP FN(adam_torch_loop)(float *restrict w, const float *restrict g, float *restrict m,
                         float *restrict v, size_t n, const float *c, int with_l2, int from_m) {
    const float c1 = c[1], beta2 = c[2], c2 = c[3], eps = c[4];
    const float l2 = c[5], decay = c[6], step = c[7], root = c[8], sign = c[9];
    const float rest = 1.0f - c1;
    for (size_t i = 0; i < n; i++) {
        float gi = sign * g[i];
        if (with_l2) gi = fmaf(w[i], l2, gi);
        const float mi = from_m ? fmaf(gi - m[i], c1, m[i]) : fmaf(m[i] - gi, rest, gi);
        const float vi = fmaf(c2 * gi, gi, beta2 * v[i]);
        m[i] = mi;
        v[i] = vi;
        w[i] = decay * w[i] + (step * mi) / (sqrtf(vi) / root + eps);
    }
}

static void FN(adam_torch)(float *w, const float *g, float *m, float *v, size_t n, const float *c) {
    const int from_m = c[1] < 0.5f;
    if (c[5] != 0.0f) {
        if (from_m)
            FN(adam_torch_loop)(w, g, m, v, n, c, 1, 1);
        else
            FN(adam_torch_loop)(w, g, m, v, n, c, 1, 0);
    } else {
        if (from_m)
            FN(adam_torch_loop)(w, g, m, v, n, c, 0, 1);
        else
            FN(adam_torch_loop)(w, g, m, v, n, c, 0, 0);
    }
}
