/* Casts of one number between FP32 and the two 16-bit formats, rounded to nearest even.
 *
 * This file owns the portable casts. It does not use the processor's conversions: some of them
 * flush denormals. cast.c uses one that does not.
 * Source: IEEE 754-2019 binary16; bfloat16 is the upper half of binary32.
 */
#ifndef ONDIE_HALF_H
#define ONDIE_HALF_H

#include <stdint.h>
#include <string.h>

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

/* Add `more` to the 16 discarded bits and truncate the sum. */
static inline uint16_t bf16_with(float x, uint32_t more) {
    const uint32_t bits = bits_of(x);
    const uint32_t nan = (bits >> 16) | 0x40u;
    const uint32_t sum = (bits + more) >> 16;
    return (uint16_t)((int32_t)(bits & 0x7fffffffu) > 0x7f800000 ? nan : sum);
}

static inline uint16_t to_bf16(float x) {
    return bf16_with(x, 0x7fffu + ((bits_of(x) >> 16) & 1u));
}

static inline float from_bf16(uint16_t x) { return float_of((uint32_t)x << 16); }

/* Normal results: rebias the exponent and round the 13 discarded bits. Denormal results: adding 1/2
 * leaves the result, a multiple of 2^-24, rounded in the low bits of the significand. Results are
 * selected by mask, because compilers do not vectorize floating-point operations in branches. */
static inline uint16_t to_fp16(float x) {
    const uint32_t bits = bits_of(x);
    const int32_t size = (int32_t)(bits & 0x7fffffffu);
    const int32_t normal = (size - 0x38000000 + 0xfff + ((size >> 13) & 1)) >> 13;
    const int32_t tiny = (int32_t)bits_of(float_of((uint32_t)size) + 0.5f) - 0x3f000000;
    const int32_t nan = 0x7e00 | ((size >> 13) & 0x3ff);
    const int32_t is_tiny = -(size < 0x38800000), is_large = -(size >= 0x477ff000);
    const int32_t is_nan = -(size > 0x7f800000);
    int32_t half = (tiny & is_tiny) | (normal & ~is_tiny);
    half = (0x7c00 & is_large) | (half & ~is_large);
    half = (nan & is_nan) | (half & ~is_nan);
    return (uint16_t)((bits >> 16 & 0x8000u) | (uint32_t)half);
}

/* Multiplication by 2^112 rebiases the exponent and normalizes denormals exactly. */
static inline float from_fp16(uint16_t x) {
    const uint32_t sign = (uint32_t)(x & 0x8000u) << 16;
    const uint32_t size = (uint32_t)(x & 0x7fffu) << 13;
    const uint32_t finite = bits_of(float_of(size) * 0x1p112f);
    const uint32_t special = (uint32_t)-((int32_t)size >= 0x0f800000);
    return float_of(sign | finite | (special & 0x7f800000u));
}

#endif
