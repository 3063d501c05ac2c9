/* 8-bit states: decode a block from its codes and scale, and encode it with the nearest codes.
 *
 * This file does not derive the maps (kernels/codes.py) and does not update anything.
 * Source: Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022.
 */
#include "half.h"
#include "isa.h"
#ifdef ONDIE_CODES_WIDE
#include ONDIE_CODES_WIDE
#endif

static inline __attribute__((always_inline)) void FN(decode)(const uint8_t *restrict codes,
                                                             float scale, float *restrict x,
                                                             size_t n,
                                                             const ondie_codes *restrict map,
                                                             int sign) {
    size_t i = 0;
#ifdef ONDIE_CODES_WIDE
    i = n - n % WIDE;
    decode_wide(codes, scale, x, i, map, sign);
#else
    (void)sign;
#endif
    for (; i < n; i++) x[i] = map->value[codes[i]] * scale;
}

/* Encode n numbers by table. Results are selected by mask, so that compilers vectorize the loop. */
static __attribute__((noinline)) void FN(encode_exactly)(const float *x, float scale,
                                                         uint8_t *codes, size_t n,
                                                         const ondie_codes *map) {
    const int32_t zero = map->zero;
    for (size_t i = 0; i < n; i++) {
        const float y = x[i] / scale;
        const uint32_t bits = bits_of(y);
        const int32_t size = (int32_t)(bits & 0x7fffffffu);
        const int32_t is_nan = -(size > 0x7f800000), negative = -(int32_t)(bits >> 31);
        int32_t bucket = (size >> 16) - 0x3380;
        bucket &= -(bucket > 0) & ~is_nan;
        const int32_t found = map->bucket[bucket + (negative & ONDIE_CODE_BUCKETS)];
        const int32_t passed = -((size & 0xffff) >= (found & 0x1ffff));
        const int32_t code = (found >> 17) + ((passed ^ ~negative) - ~negative);
        codes[i] = (uint8_t)((zero & is_nan) | (code & ~is_nan));
    }
}

/* Return the scale of a block: its largest magnitude, or NaN if it contains a NaN. */
static inline float FN(scale_of)(const float *restrict x, size_t n) {
    int32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        const int32_t size = (int32_t)(bits_of(x[i]) & 0x7fffffffu);
        most = size > most ? size : most;
    }
    return float_of(most > 0x7f800000 ? 0x7fc00000u : (uint32_t)most);
}

static inline __attribute__((always_inline)) void FN(encode)(const float *restrict x, float scale,
                                                             uint8_t *restrict codes, size_t n,
                                                             const ondie_codes *restrict map,
                                                             int sign) {
    size_t i = 0;
#ifdef ONDIE_CODES_WIDE
    if (scale > 0x1p-100f && scale < 0x1p100f) {
        i = n - n % WIDE;
        encode_wide(x, scale, codes, i, map, sign, FN(encode_exactly));
    }
#else
    (void)sign;
#endif
    FN(encode_exactly)(x + i, scale, codes + i, n - i, map);
}
