/* Parts of BCH codes for AVX-512 with GFNI and VPCLMULQDQ.
 *
 * This file owns the vectors and the products of this form. It does not own the loops
 * (bch_vector.h).
 * Source: Intel 64 and IA-32 Architectures Software Developer's Manual, GF2P8AFFINEQB and
 * VPCLMULQDQ.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,gfni,pclmul,vpclmulqdq"))), \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,gfni,pclmul,vpclmulqdq")
#pragma GCC target("prefer-vector-width=512")
#endif

#define BCH_VECTOR 64
#include "bch.h"

enum { WIDTH = 64, TILE = 8 };

typedef __m512i bytes_vector;
typedef __m512i product_vector;
/* Bit matrices from low to low bytes, high to low, low to high, high to high. */
typedef __m256i packed_map;
typedef struct {
    __m512i low_low, high_low, low_high, high_high;
} bch_map;

static inline __m512i no_bytes(void) { return _mm512_setzero_si512(); }
static inline __m512i all_bytes(uint8_t byte) { return _mm512_set1_epi8((char)byte); }
static inline __m512i load_bytes(const uint8_t *at) { return _mm512_loadu_si512(at); }
static inline void store_bytes(uint8_t *at, __m512i bytes) { _mm512_storeu_si512(at, bytes); }

static inline __m256i map_at(const uint8_t *maps, uint32_t digit) {
    return _mm256_load_si256((const __m256i *)(maps + 32 * digit));
}

static inline __m256i pack(const ondie_bch *code, int k, uint32_t c) {
    const uint8_t *maps = code->maps + k * 4 * 16 * 32;
    return _mm256_xor_si256(_mm256_xor_si256(map_at(maps, c & 15),
                                             map_at(maps + 512, c >> 4 & 15)),
                            _mm256_xor_si256(map_at(maps + 1024, c >> 8 & 15),
                                             map_at(maps + 1536, c >> 12)));
}

static inline void add_packed(__m256i *map, __m256i other) {
    *map = _mm256_xor_si256(*map, other);
}

static inline bch_map unpack(__m256i map) {
    const __m512i wide = _mm512_castsi256_si512(map);
    return (bch_map){
        _mm512_permutexvar_epi64(_mm512_setzero_si512(), wide),
        _mm512_permutexvar_epi64(_mm512_set1_epi64(1), wide),
        _mm512_permutexvar_epi64(_mm512_set1_epi64(2), wide),
        _mm512_permutexvar_epi64(_mm512_set1_epi64(3), wide),
    };
}

static inline __m512i xor_three(__m512i a, __m512i b, __m512i c) {
    return _mm512_ternarylogic_epi64(a, b, c, 0x96);
}

static inline void apply(const bch_map *map, __m512i low, __m512i high, __m512i *sum_low,
                         __m512i *sum_high) {
    *sum_low = xor_three(*sum_low, _mm512_gf2p8affine_epi64_epi8(low, map->low_low, 0),
                         _mm512_gf2p8affine_epi64_epi8(high, map->high_low, 0));
    *sum_high = xor_three(*sum_high, _mm512_gf2p8affine_epi64_epi8(low, map->low_high, 0),
                          _mm512_gf2p8affine_epi64_epi8(high, map->high_high, 0));
}

static inline uint64_t zero_elements(__m512i low, __m512i high) {
    const __m512i any = _mm512_or_si512(low, high);
    return _mm512_testn_epi8_mask(any, any);
}

static inline void carryless(uint64_t a, uint64_t b, uint64_t *product) {
    const __m128i both = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)a),
                                              _mm_cvtsi64_si128((long long)b), 0);
    _mm_storeu_si128((__m128i *)product, both);
}

static inline __m512i no_product(void) { return _mm512_setzero_si512(); }

static inline __attribute__((always_inline)) void add_block(const uint8_t *data,
                                                            const uint64_t *dot, int columns,
                                                            __m512i *product) {
    const __m512i block = _mm512_loadu_si512(data);
    for (int j = 0; j < columns; j++) {
        const __m512i factor = _mm512_load_si512(dot + 8 * j);
        product[j] = xor_three(product[j], _mm512_clmulepi64_epi128(block, factor, 0x00),
                               _mm512_clmulepi64_epi128(block, factor, 0x11));
    }
}

static inline void fold_product(__m512i product, uint64_t *both) {
    const __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(product),
                                          _mm512_extracti64x4_epi64(product, 1));
    _mm_storeu_si128((__m128i *)both, _mm_xor_si128(_mm256_castsi256_si128(half),
                                                    _mm256_extracti128_si256(half, 1)));
}

#define PART(name) bch_##name##_avx512
#include "bch_vector.h"

const ondie_bch_parts ondie_bch_avx512 = {PART(remainder), PART(syndromes), PART(locator),
                                          PART(roots)};

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int ondie_no_bch_avx512; /* a translation unit must not be empty */
#endif
