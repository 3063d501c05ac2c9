/* Adam and AdamW of one parameter in canonical and torch form (formulas: ondie.h).
 *
 * This file does not fold hyperparameters, and it does not load or store (update.c).
 * Source: Kingma & Ba 2015; Loshchilov & Hutter 2019; the order of operations observed in torch's
 * fused CPU Adam.
 */
#include "isa.h"

POINT FN(adam_canonical)(float w, float g, float *m, float *v, const float *c, int l2) {
    if (l2) g = g + c[5] * w;
    *m = c[0] * *m + c[1] * g;
    *v = c[2] * *v + (c[3] * g) * g;
    return c[6] * w - c[7] * (*m / (sqrtf(*v) * c[8] + c[4]));
}

/* torch interpolates from the nearer end: from m if the weight is below 1/2, else from g. */
POINT FN(adam_torch)(float w, float g, float *m, float *v, const float *c, int l2, int from_m) {
    g = c[9] * g;
    if (l2) g = fmaf(w, c[5], g);
    *m = from_m ? fmaf(g - *m, c[1], *m) : fmaf(*m - g, 1.0f - c[1], g);
    *v = fmaf(c[3] * g, g, c[2] * *v);
    return c[6] * w + (c[7] * *m) / (sqrtf(*v) / c[8] + c[4]);
}
