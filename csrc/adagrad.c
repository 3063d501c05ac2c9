/* AdaGrad of one parameter in canonical and torch form (formulas: ondie.h).
 *
 * This file does not fold hyperparameters, and it does not load or store (update.c).
 * Source: Duchi et al. 2011; the order of operations observed in torch's fused CPU Adagrad.
 */
#include "isa.h"

POINT FN(adagrad)(float w, float g, float *v, const float *c, int fused, int l2) {
    if (l2) g = mad(w, c[1], g, fused);
    *v = mad(g, g, *v, fused);
    return w - (c[0] * g) / (sqrtf(*v) + c[2]);
}
