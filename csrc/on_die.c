/* Adam and AdaGrad of one parameter in the passes of an on-die processing element (formulas:
 * ondie.h).
 *
 * This file does not count cycles (kernels/on_die.py), and it does not load or store (update.c).
 * Source: OptimStore (HPCA 2023): LVS, QVS, ISQRT, VMUL; the fast inverse square root of Quake III
 * Arena, 1999, after Lomont, "Fast inverse square root", 2003.
 */
#include "half.h"
#include "isa.h"

/* v1 <- a v1 + b v2 */
POINT FN(lvs)(float v1, float a, float v2, float b) { return a * v1 + b * v2; }

/* v1 <- a v1 + b v2^2 */
POINT FN(qvs)(float v1, float a, float v2, float b) { return a * v1 + (b * v2) * v2; }

POINT FN(isqrt)(float x, int newton) {
    float y = float_of(0x5f3759dfu - (bits_of(x) >> 1));
    const float half = 0.5f * x;
    for (int i = 0; i < newton; i++) y = y * (1.5f - (half * y) * y);
    return y;
}

POINT FN(die_adam)(float w, float g, float *m, float *v, const float *c, int l2, int newton) {
    if (l2) g = FN(lvs)(g, 1.0f, w, c[5]);
    *m = FN(lvs)(*m, c[0], g, c[1]);
    *v = FN(qvs)(*v, c[2], g, c[3]);
    return FN(lvs)(w, c[6], *m * FN(isqrt)(*v, newton), c[7]);
}

POINT FN(die_adagrad)(float w, float g, float *v, const float *c, int l2, int newton) {
    if (l2) g = FN(lvs)(g, 1.0f, w, c[1]);
    *v = FN(qvs)(*v, 1.0f, g, 1.0f);
    return FN(lvs)(w, 1.0f, g * FN(isqrt)(*v, newton), c[0]);
}
