/* Owns: the memory limit, an update's traffic with next to no arithmetic, for benchmarks.
 * Does not: compute anything of use.
 * Source: own, after the STREAM benchmark's idea.
 */
#include "isa.h"

static void FN(limit28)(float *restrict w, const float *restrict g, float *restrict m,
                        float *restrict v, size_t n) {
    for (size_t i = 0; i < n; i++) {
        w[i] = (w[i] + g[i]) * 0.5f;
        m[i] = (m[i] + g[i]) * 0.5f;
        v[i] = (v[i] + g[i]) * 0.5f;
    }
}

static void FN(limit20)(float *restrict w, const float *restrict g, float *restrict m, size_t n) {
    for (size_t i = 0; i < n; i++) {
        w[i] = (w[i] + g[i]) * 0.5f;
        m[i] = (m[i] + g[i]) * 0.5f;
    }
}

static void FN(limit12)(float *restrict w, const float *restrict g, size_t n) {
    for (size_t i = 0; i < n; i++) w[i] = (w[i] + g[i]) * 0.5f;
}
