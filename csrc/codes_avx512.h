/* 8-bit codes in 512-bit vectors, with tables in registers; codes.c reads them from memory.
 *
 * This file owns vector encoding and decoding. It does not encode numbers whose code FP32
 * arithmetic cannot decide; it passes them to codes.c.
 * Source: this project; the lines are those of ondie_codes.
 *
 * The error of a place is below ONDIE_CODE_UNSURE, in units of 2^-ONDIE_CODE_FRACTION. It has these
 * parts: 0.9 for two rounded sums; 0.8 for a quotient computed with an inverse and a slope, times
 * 143 places and more; 0.6 for the limit of a line; 0.3 for the midpoint of two numbers.
 */
#ifndef ONDIE_CODES_AVX512_H
#define ONDIE_CODES_AVX512_H

enum { WIDE = 16 };

/* Decode n codes; n is a multiple of WIDE. */
static inline __attribute__((always_inline)) void decode_wide(const uint8_t *restrict codes,
                                                              float scale, float *restrict x,
                                                              size_t n,
                                                              const ondie_codes *restrict map,
                                                              int sign) {
    const __m512 slope = _mm512_loadu_ps(map->line[0]), offset = _mm512_loadu_ps(map->line[1]);
    const __m512 by = _mm512_set1_ps(scale);
    const __m512i base = _mm512_set1_epi32(map->base);
    const __m512i minus = _mm512_set1_epi32((int)0x80000000u);
    for (size_t i = 0; i < n; i += WIDE) {
        const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(codes + i)));
        const __m512i place = _mm512_sub_epi32(code, base);
        const __m512 number = _mm512_cvtepi32_ps(place);
        const __m512i at = _mm512_srli_epi32(_mm512_castps_si512(number), 23);
        const __m512 steps = _mm512_permutexvar_ps(at, slope);
        __m512 more = _mm512_permutexvar_ps(at, offset), y;
        if (sign) { /* more ^ (place & minus) */
            more = _mm512_castsi512_ps(
                _mm512_ternarylogic_epi32(_mm512_castps_si512(more), place, minus, 0x78));
            y = _mm512_maskz_fmadd_ps(_mm512_test_epi32_mask(place, place), number, steps, more);
        } else { /* unsigned places start at 1 */
            y = _mm512_fmadd_ps(number, steps, more);
        }
        _mm512_storeu_ps(x + i, _mm512_mul_ps(y, by));
    }
}

/* Encode n numbers; n is a multiple of WIDE. The magnitudes are at most the scale, and the scale is
 * neither tiny nor huge. `exactly` encodes every vector that contains an undecided number. */
static inline __attribute__((always_inline)) void
encode_wide(const float *restrict x, float scale, uint8_t *restrict codes, size_t n,
            const ondie_codes *restrict map, int sign,
            void (*exactly)(const float *, float, uint8_t *, size_t, const ondie_codes *)) {
    enum { ONE = 1 << ONDIE_CODE_FRACTION };
    const __m512 limit = _mm512_loadu_ps(map->limit), slope = _mm512_loadu_ps(map->to_line[0]);
    const __m512 offset = _mm512_loadu_ps(map->to_line[1]), top = _mm512_loadu_ps(map->to_line[2]);
    const __m512 inverse = _mm512_set1_ps(1.0f / scale), least = _mm512_set1_ps(map->least);
    const __m512i unsure = _mm512_set1_epi32(ONE - 2 * ONDIE_CODE_UNSURE);
    const __m512i zero = _mm512_set1_epi32(map->zero), next = _mm512_set1_epi32(1);
    const __m512i most = _mm512_set1_epi32(((127 + 23) << (23 - ONDIE_CODE_FRACTION)) + 127);
    for (size_t i = 0; i < n; i += WIDE) {
        const __m512 number = _mm512_loadu_ps(x + i);
        const __m512 size = sign ? _mm512_abs_ps(number) : number;
        const __m512 y = _mm512_max_ps(_mm512_mul_ps(size, inverse), least);
        __m512i at = _mm512_srli_epi32(_mm512_castps_si512(y), 24);
        at = _mm512_mask_add_epi32(
            at, _mm512_cmp_ps_mask(y, _mm512_permutexvar_ps(at, limit), _CMP_GT_OQ), at, next);
        const __m512 place = _mm512_fmadd_ps(y, _mm512_permutexvar_ps(at, slope),
                                             _mm512_permutexvar_ps(at, offset));
        __m512i code = _mm512_srli_epi32(
            _mm512_castps_si512(_mm512_min_ps(place, _mm512_permutexvar_ps(at, top))),
            ONDIE_CODE_FRACTION); /* the store keeps only the lowest 8 bits */
        if (sign) {
            const __mmask16 minus = _mm512_movepi32_mask(_mm512_castps_si512(number));
            code = _mm512_mask_min_epi32(code, minus, code, most);
            code = _mm512_mask_sub_epi32(_mm512_add_epi32(zero, code), minus, zero, code);
        }
        _mm_storeu_si128((__m128i *)(codes + i), _mm512_cvtepi32_epi8(code));
        const __mmask16 open = _mm512_testn_epi32_mask(_mm512_castps_si512(place), unsure);
        if (__builtin_expect(!_kortestz_mask16_u8(open, open), 0))
            exactly(x + i, scale, codes + i, WIDE, map);
    }
}

#endif
