/* 8-bit codes in 256-bit vectors, with tables in registers; codes.c reads them from memory.
 *
 * This file owns vector encoding and decoding for AVX2. It does not encode numbers whose code FP32
 * arithmetic cannot decide; it passes them to codes.c.
 * Source: this project; codes_avx512.h has the same arithmetic and bounds its error. A table of 16
 * numbers takes two permutations and a blend, one of 16 bytes a shuffle.
 */
#ifndef ONDIE_CODES_AVX2_H
#define ONDIE_CODES_AVX2_H

enum { LANES = 8, WIDE = 4 * LANES };

/* Decode n codes; n is a multiple of WIDE. Places 1 .. 128 have different exponents modulo 8; place
 * 256, which only unsigned maps have, has that of place 1. */
static inline __attribute__((always_inline)) void decode_wide(const uint8_t *restrict codes,
                                                              float scale, float *restrict x,
                                                              size_t n,
                                                              const ondie_codes *restrict map,
                                                              int sign) {
    const float *const line = map->line[0], *const from = map->line[1];
    const __m256 slope = _mm256_blend_ps(_mm256_loadu_ps(line), _mm256_loadu_ps(line + 8), 0x80);
    const __m256 offset = _mm256_blend_ps(_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8), 0x80);
    const __m256 by = _mm256_set1_ps(scale), last = _mm256_set1_ps(fmaf(256, line[7], from[7]));
    const __m256i base = _mm256_set1_epi32(map->base), end = _mm256_set1_epi32(256);
    const __m256i minus = _mm256_set1_epi32((int)0x80000000u), zero = _mm256_setzero_si256();
    for (size_t i = 0; i < n; i += LANES) {
        const __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(codes + i)));
        const __m256i place = _mm256_sub_epi32(code, base);
        const __m256 number = _mm256_cvtepi32_ps(place);
        const __m256i at = _mm256_srli_epi32(_mm256_castps_si256(number), 23);
        const __m256 steps = _mm256_permutevar8x32_ps(slope, at);
        __m256 more = _mm256_permutevar8x32_ps(offset, at), y;
        if (sign) {
            more = _mm256_xor_ps(more, _mm256_castsi256_ps(_mm256_and_si256(place, minus)));
            y = _mm256_andnot_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(place, zero)),
                                 _mm256_fmadd_ps(number, steps, more));
        } else {
            y = _mm256_blendv_ps(_mm256_fmadd_ps(number, steps, more), last,
                                 _mm256_castsi256_ps(_mm256_cmpeq_epi32(place, end)));
        }
        _mm256_storeu_ps(x + i, _mm256_mul_ps(y, by));
    }
}

/* A table of 16 numbers: its low half, and the bits in which the other half differs. */
typedef struct {
    __m256 low, change;
} half_tables;

static inline __attribute__((always_inline)) half_tables halves(const float *numbers) {
    const __m256 low = _mm256_loadu_ps(numbers);
    return (half_tables){low, _mm256_xor_ps(low, _mm256_loadu_ps(numbers + 8))};
}

/* Return entry `at` modulo 16 of a table; `high` is all ones where bit 3 of `at` is set. The usual
 * blend takes three instructions' time. */
static inline __attribute__((always_inline)) __m256 entry(half_tables table, __m256i at,
                                                          __m256 high) {
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(table.low, at),
                         _mm256_and_ps(_mm256_permutevar8x32_ps(table.change, at), high));
}

static inline __attribute__((always_inline)) __m256 is_high(__m256i at) {
    return _mm256_castsi256_ps(_mm256_srai_epi32(_mm256_slli_epi32(at, 28), 31));
}

/* Return the lowest bytes of eight 32-bit lanes as the low half of a vector. */
static inline __attribute__((always_inline)) __m128i low_bytes(__m256i lanes) {
    const __m256i packed = _mm256_shuffle_epi8(lanes, _mm256_set1_epi32(0x0c080400));
    return _mm_unpacklo_epi32(_mm256_castsi256_si128(packed), _mm256_extracti128_si256(packed, 1));
}

/* Return the largest place of each line as 16 bytes, twice. */
static inline __attribute__((always_inline)) __m256i tops(const float *numbers) {
    const __m256i *const at = (const __m256i *)numbers;
    const __m128i low = low_bytes(_mm256_srli_epi32(_mm256_loadu_si256(at), ONDIE_CODE_FRACTION));
    const __m128i high =
        low_bytes(_mm256_srli_epi32(_mm256_loadu_si256(at + 1), ONDIE_CODE_FRACTION));
    return _mm256_broadcastsi128_si256(_mm_unpacklo_epi64(low, high));
}

/* Encode n numbers; n is a multiple of WIDE. Arguments as in codes_avx512.h. */
static inline __attribute__((always_inline)) void
encode_wide(const float *restrict x, float scale, uint8_t *restrict codes, size_t n,
            const ondie_codes *restrict map, int sign,
            void (*exactly)(const float *, float, uint8_t *, size_t, const ondie_codes *)) {
    enum { ONE = 1 << ONDIE_CODE_FRACTION };
    const half_tables limit = halves(map->limit);
    const half_tables slope = halves(map->to_line[0]), offset = halves(map->to_line[1]);
    const __m256 inverse = _mm256_set1_ps(1.0f / scale), least = _mm256_set1_ps(map->least);
    const __m256 no_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    const __m256i unsure = _mm256_set1_epi32(ONE - 2 * ONDIE_CODE_UNSURE);
    const __m256i zero = _mm256_set1_epi32(map->zero), none = _mm256_setzero_si256();
    const __m256i one = _mm256_set1_epi32(1);
    const __m256i only_low = _mm256_set1_epi32((int)0x80808000u), fifteen = _mm256_set1_epi32(15);
    const __m256i above = _mm256_set1_epi32((127 + 23) << (23 - ONDIE_CODE_FRACTION));
    const __m256i end = _mm256_add_epi32(above, _mm256_set1_epi32(128)); /* negative: one less */
    const __m256i byte = _mm256_set1_epi32(255);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); /* undoes the packing */
    const __m256i top = tops(map->to_line[2]);
    for (size_t i = 0; i < n; i += WIDE) {
        __m256i code[4], open = none;
        for (int j = 0; j < 4; j++) {
            const __m256 number = _mm256_loadu_ps(x + i + LANES * j);
            const __m256 size = sign ? _mm256_and_ps(number, no_sign) : number;
            const __m256 y = _mm256_max_ps(_mm256_mul_ps(size, inverse), least);
            __m256i at = _mm256_srli_epi32(_mm256_castps_si256(y), 24);
            const __m256 passed = _mm256_cmp_ps(y, entry(limit, at, is_high(at)), _CMP_GT_OQ);
            at = _mm256_sub_epi32(at, _mm256_castps_si256(passed));
            const __m256 high = is_high(at);
            const __m256 place =
                _mm256_fmadd_ps(y, entry(slope, at, high), entry(offset, at, high));
            const __m256i bits = _mm256_castps_si256(place);
            const __m256i last = _mm256_or_si256(
                _mm256_shuffle_epi8(top, _mm256_or_si256(_mm256_and_si256(at, fifteen), only_low)),
                above);
            code[j] = _mm256_min_epi32(_mm256_srli_epi32(bits, ONDIE_CODE_FRACTION), last);
            if (sign) {
                const __m256i word = _mm256_castps_si256(number);
                const __m256i most = _mm256_add_epi32(end, _mm256_srai_epi32(word, 31));
                const __m256i signed_place =
                    _mm256_sign_epi32(_mm256_min_epi32(code[j], most), _mm256_or_si256(word, one));
                code[j] = _mm256_add_epi32(zero, signed_place);
            }
            code[j] = _mm256_and_si256(code[j], byte);
            open = _mm256_or_si256(open, _mm256_cmpeq_epi32(_mm256_and_si256(bits, unsure), none));
        }
        const __m256i packed = _mm256_packus_epi16(_mm256_packus_epi32(code[0], code[1]),
                                                   _mm256_packus_epi32(code[2], code[3]));
        _mm256_storeu_si256((__m256i *)(codes + i), _mm256_permutevar8x32_epi32(packed, order));
        if (__builtin_expect(!_mm256_testz_si256(open, open), 0))
            exactly(x + i, scale, codes + i, WIDE, map);
    }
}

#endif
