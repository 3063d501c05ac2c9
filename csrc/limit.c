/* Memory limit for benchmarks: the traffic of an update with almost no arithmetic.
 *
 * The results are meaningless numbers.
 * Source: this project, after the STREAM benchmark.
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

/* Process the arrays by tiles, so that a second access to an element hits the first-level cache. */
static void FN(limit)(const ondie_part *p, const int32_t *bytes) {
    enum { TILE = 2048 };
    void *const arrays[] = {p->w, p->a, p->b};
    const int32_t each[] = {bytes[0], bytes[2], bytes[3]};
    for (size_t i = 0; i < p->n; i += TILE) {
        const size_t n = p->n - i < TILE ? p->n - i : TILE;
        float *const w = (float *)((char *)p->w + i * (size_t)bytes[0]);
        const float *const g = (const float *)((const char *)p->g + i * (size_t)bytes[1]);
        float *const out = (float *)((char *)p->out + i * (size_t)bytes[4]);
        for (int k = 0; k < 3; k++) {
            float *const x = (float *)((char *)arrays[k] + i * (size_t)each[k]);
            for (size_t j = 0; j < n * (size_t)each[k] / 4; j++) x[j] = (x[j] + 1.0f) * 0.5f;
        }
        const size_t read = n * (size_t)(bytes[1] < bytes[0] ? bytes[1] : bytes[0]) / 4;
        for (size_t j = 0; j < read; j++) w[j] = (w[j] + g[j]) * 0.5f;
        for (size_t j = 0; j < n * (size_t)bytes[4] / 4; j++) out[j] = w[j] * 0.5f;
    }
}
