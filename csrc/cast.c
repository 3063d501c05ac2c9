/* Owns: casts between FP32 and the two 16-bit formats, round to nearest even.
 * Does not: use the processor's own conversions, some of which flush denormals.
 * Source: IEEE 754-2019 binary16; bfloat16 is the upper half of binary32.
 */
#include <string.h>

#include "isa.h"

#ifndef ONDIE_CAST_BITS
#define ONDIE_CAST_BITS
static inline uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
#endif

static void FN(to_bf16)(const float *restrict x, uint16_t *restrict y, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = bits_of(x[i]);
        const uint32_t nan = (bits >> 16) | 0x40u;
        const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        y[i] = (uint16_t)((int32_t)(bits & 0x7fffffffu) > 0x7f800000 ? nan : rounded);
    }
}

static void FN(from_bf16)(const uint16_t *restrict x, float *restrict y, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = float_of((uint32_t)x[i] << 16);
}

/* Normal results: rebias the exponent and round the 13 bits that go. Denormal results: adding
 * 1/2 leaves the wanted bits, multiples of 2^-24, at the end of the significand, rounded.
 * Selection is by mask: compilers do not vectorise a floating-point operation behind a branch. */
static void FN(to_fp16)(const float *restrict x, uint16_t *restrict y, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = bits_of(x[i]);
        const int32_t size = (int32_t)(bits & 0x7fffffffu);
        const int32_t normal = (size - 0x38000000 + 0xfff + ((size >> 13) & 1)) >> 13;
        const int32_t tiny = (int32_t)bits_of(float_of((uint32_t)size) + 0.5f) - 0x3f000000;
        const int32_t nan = 0x7e00 | ((size >> 13) & 0x3ff);
        const int32_t is_tiny = -(size < 0x38800000), is_large = -(size >= 0x477ff000);
        const int32_t is_nan = -(size > 0x7f800000);
        int32_t half = (tiny & is_tiny) | (normal & ~is_tiny);
        half = (0x7c00 & is_large) | (half & ~is_large);
        half = (nan & is_nan) | (half & ~is_nan);
        y[i] = (uint16_t)((bits >> 16 & 0x8000u) | (uint32_t)half);
    }
}

/* Multiplying by 2^112 rebiases the exponent and normalises denormals, exactly. */
static void FN(from_fp16)(const uint16_t *restrict x, float *restrict y, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const uint32_t sign = (uint32_t)(x[i] & 0x8000u) << 16;
        const uint32_t size = (uint32_t)(x[i] & 0x7fffu) << 13;
        const uint32_t finite = bits_of(float_of(size) * 0x1p112f);
        const uint32_t special = (uint32_t)-((int32_t)size >= 0x0f800000);
        y[i] = float_of(sign | finite | (special & 0x7f800000u));
    }
}
