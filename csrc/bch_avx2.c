/* Parts of BCH codes for AVX2 with PCLMULQDQ.
 *
 * This file owns the vectors and the products of this form. It does not own the loops
 * (bch_vector.h).
 * Source: Intel 64 and IA-32 Architectures Software Developer's Manual, PCLMULQDQ and VPSHUFB.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,pclmul"))), apply_to = function)
#else
#pragma GCC target("avx2,pclmul,prefer-vector-width=256")
#endif

#define BCH_VECTOR 32
#include "bch.h"

enum { WIDTH = 32, TILE = 2 };

typedef __m256i bytes_vector;
typedef __m128i product_vector;
/* For each nibble of an element: the low bytes of the images of its 16 values, then the high. */
typedef struct {
    __m256i nibble[4];
} packed_map;
typedef packed_map bch_map;

static inline __m256i no_bytes(void) { return _mm256_setzero_si256(); }
static inline __m256i all_bytes(uint8_t byte) { return _mm256_set1_epi8((char)byte); }
static inline __m256i load_bytes(const uint8_t *at) {
    return _mm256_loadu_si256((const __m256i *)at);
}
static inline void store_bytes(uint8_t *at, __m256i bytes) {
    _mm256_storeu_si256((__m256i *)at, bytes);
}

static inline void add_packed(packed_map *map, packed_map other) {
    for (int i = 0; i < 4; i++)
        map->nibble[i] = _mm256_xor_si256(map->nibble[i], other.nibble[i]);
}

static inline packed_map map_at(const uint8_t *maps, uint32_t digit) {
    packed_map found;
    memcpy(&found, maps + 128 * digit, sizeof found);
    return found;
}

static inline packed_map pack(const ondie_bch *code, int k, uint32_t c) {
    const uint8_t *maps = code->maps + k * 4 * 16 * 128;
    packed_map found = map_at(maps, c & 15);
    for (int digit = 1; digit < 4; digit++)
        add_packed(&found, map_at(maps + 2048 * digit, c >> 4 * digit & 15));
    return found;
}

static inline packed_map unpack(packed_map map) { return map; }

static inline __m256i image(__m128i table, __m256i nibbles) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), nibbles);
}

static inline void apply(const packed_map *map, __m256i low, __m256i high, __m256i *sum_low,
                         __m256i *sum_high) {
    const __m256i mask = _mm256_set1_epi8(15);
    const __m256i nibbles[4] = {
        _mm256_and_si256(low, mask),
        _mm256_and_si256(_mm256_srli_epi16(low, 4), mask),
        _mm256_and_si256(high, mask),
        _mm256_and_si256(_mm256_srli_epi16(high, 4), mask),
    };
    for (int i = 0; i < 4; i++) {
        const __m128i *table = (const __m128i *)(map->nibble + i);
        *sum_low = _mm256_xor_si256(*sum_low, image(_mm_load_si128(table), nibbles[i]));
        *sum_high = _mm256_xor_si256(*sum_high, image(_mm_load_si128(table + 1), nibbles[i]));
    }
}

static inline uint64_t zero_elements(__m256i low, __m256i high) {
    const __m256i none = _mm256_cmpeq_epi8(_mm256_or_si256(low, high), _mm256_setzero_si256());
    return (uint32_t)_mm256_movemask_epi8(none);
}

static inline void carryless(uint64_t a, uint64_t b, uint64_t *product) {
    const __m128i both = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)a),
                                              _mm_cvtsi64_si128((long long)b), 0);
    _mm_storeu_si128((__m128i *)product, both);
}

static inline __m128i no_product(void) { return _mm_setzero_si128(); }

static inline __attribute__((always_inline)) void add_block(const uint8_t *data,
                                                            const uint64_t *dot, int columns,
                                                            __m128i *product) {
    for (int pair = 0; pair < 4; pair++) {
        const __m128i words = _mm_loadu_si128((const __m128i *)data + pair);
        for (int j = 0; j < columns; j++) {
            const __m128i factor = _mm_load_si128((const __m128i *)(dot + 8 * j) + pair);
            product[j] = _mm_xor_si128(product[j], _mm_clmulepi64_si128(words, factor, 0x00));
            product[j] = _mm_xor_si128(product[j], _mm_clmulepi64_si128(words, factor, 0x11));
        }
    }
}

static inline void fold_product(__m128i product, uint64_t *both) {
    _mm_storeu_si128((__m128i *)both, product);
}

#define PART(name) bch_##name##_avx2
#include "bch_vector.h"

const ondie_bch_parts ondie_bch_avx2 = {PART(remainder), PART(syndromes), PART(locator),
                                          PART(roots)};

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int ondie_no_bch_avx2; /* a translation unit must not be empty */
#endif
