/* SGD, momentum and Nesterov of one parameter in canonical and torch form (formulas: ondie.h).
 *
 * This file does not fold hyperparameters, and it does not load or store (update.c).
 * Source: Sutskever et al. 2013 in PyTorch's convention; the order of operations observed in
 * torch's fused CPU SGD.
 */
#include "isa.h"

POINT FN(sgd)(float w, float g, const float *c, int fused, int l2) {
    if (l2) g = mad(w, c[1], g, fused);
    return mad(g, -c[0], w, fused);
}

POINT FN(momentum)(float w, float g, float *m, const float *c, int fused, int l2, int nesterov) {
    if (l2) g = mad(w, c[1], g, fused);
    *m = mad(c[3], g, c[2] * *m, fused);
    return mad(nesterov ? mad(*m, c[4], g, fused) : *m, -c[0], w, fused);
}
