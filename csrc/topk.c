/* Selection of the k largest magnitudes of an array.
 *
 * This file does not use vectors, because counting limits its speed. It does not restore the
 * gradient (kernels/topk.py).
 * Source: selection by counting digits; Top-K gradients as in SmartComp (Smart-Infinity, HPCA
 * 2024).
 */
#include <string.h>

#include "half.h"
#include "ondie.h"

enum { DIGIT = 1 << 16 };

/* Return the magnitude as an integer; NaNs are above infinity. */
static uint32_t size_of(float x) { return bits_of(x) & 0x7fffffffu; }

/* Find the digit of the `left`-th largest number. Return how many numbers have larger digits. */
static size_t reached(const uint32_t *count, size_t left, uint32_t *digit) {
    size_t above = 0;
    uint32_t d = DIGIT - 1;
    while (above + count[d] < left) above += count[d--];
    *digit = d;
    return above;
}

void ondie_top_k(const float *g, size_t n, size_t k, uint32_t *index, float *value,
                 uint32_t *count) {
    uint32_t high, low;
    if (k == 0) return;
    memset(count, 0, DIGIT * sizeof *count);
    for (size_t i = 0; i < n; i++) count[size_of(g[i]) >> 16]++;
    size_t left = k - reached(count, k, &high);
    memset(count, 0, DIGIT * sizeof *count);
    for (size_t i = 0; i < n; i++)
        if (size_of(g[i]) >> 16 == high) count[size_of(g[i]) & 0xffffu]++;
    left -= reached(count, left, &low);
    const uint32_t limit = high << 16 | low; /* select all larger and the first `left` equal */
    for (size_t i = 0, at = 0; at < k; i++) {
        const uint32_t size = size_of(g[i]);
        if (size < limit || (size == limit && left == 0)) continue;
        left -= size == limit;
        index[at] = (uint32_t)i;
        value[at++] = g[i];
    }
}
