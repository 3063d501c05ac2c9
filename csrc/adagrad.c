/* Owns: AdaGrad of one parameter, canonical and torch form (formulas: ondie.h).
 * Does not: fold hyperparameters, load or store (update.c).
 * Source: Duchi et al. 2011; operation order of torch's fused CPU Adagrad, observed.
 */
#include "isa.h"

POINT FN(adagrad)(float w, float g, float *v, const float *c, int fused, int l2) {
    if (l2) g = mad(w, c[1], g, fused);
    *v = mad(g, g, *v, fused);
    return w - (c[0] * g) / (sqrtf(*v) + c[2]);
}
