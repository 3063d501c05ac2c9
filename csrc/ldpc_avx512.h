/* Vectors of 64 messages of 8 bits, for ldpc.c.
 *
 * This file does not decode. Source: Intel Intrinsics Guide.
 */
#ifndef ONDIE_LDPC_AVX512_H
#define ONDIE_LDPC_AVX512_H

typedef __m512i lanes;
enum { MESSAGES = 64 };

#define LANE static inline __attribute__((always_inline)) lanes

LANE lanes_load(const int8_t *at) { return _mm512_loadu_si512(at); }
LANE lanes_all(int8_t value) { return _mm512_set1_epi8(value); }
LANE lanes_add(lanes a, lanes b) { return _mm512_add_epi8(a, b); }
LANE lanes_sub(lanes a, lanes b) { return _mm512_sub_epi8(a, b); }
LANE lanes_xor(lanes a, lanes b) { return _mm512_xor_si512(a, b); }
LANE lanes_abs(lanes a) { return _mm512_abs_epi8(a); }
LANE lanes_min(lanes a, lanes b) { return _mm512_min_epu8(a, b); }
LANE lanes_max(lanes a, lanes b) { return _mm512_max_epu8(a, b); }

/* Bits of a where those of mask are set, else of b. */
LANE lanes_bits(lanes mask, lanes a, lanes b) {
    return _mm512_ternarylogic_epi32(mask, a, b, 0xca);
}

/* equal where a = b, else other. */
LANE lanes_equal(lanes a, lanes b, lanes equal, lanes other) {
    return _mm512_mask_blend_epi8(_mm512_cmpeq_epi8_mask(a, b), other, equal);
}

/* -a where sign is negative, else a. The test has another port than minima and magnitudes. */
LANE lanes_signed(lanes a, lanes sign) {
    const uint64_t negative = _mm512_test_epi8_mask(sign, _mm512_set1_epi8(-128));
    return _mm512_mask_sub_epi8(a, negative, _mm512_setzero_si512(), a);
}

/* a - b where bits are 1, else a. */
LANE lanes_sub_where(const uint8_t *bits, lanes a, lanes b) {
    uint64_t word;
    memcpy(&word, bits, sizeof word);
    return _mm512_mask_sub_epi8(a, word, a, b);
}

/* -a where bits are 1, else a. */
LANE lanes_signed_by(const uint8_t *bits, lanes a) {
    uint64_t word;
    memcpy(&word, bits, sizeof word);
    return _mm512_mask_sub_epi8(a, word, _mm512_setzero_si512(), a);
}

/* a - ceil(a / 4), a not negative. */
LANE lanes_three_quarters(lanes a) {
    const lanes zero = _mm512_setzero_si512();
    return _mm512_sub_epi8(a, _mm512_avg_epu8(_mm512_avg_epu8(a, zero), zero));
}

/* Values for bits of 0 and 1, one for each bit. */
LANE lanes_of_bits(const uint8_t *bits, lanes zero, lanes one) {
    uint64_t word;
    memcpy(&word, bits, sizeof word);
    return _mm512_mask_blend_epi8(word, zero, one);
}

/* The first n of a, then those of b. */
LANE lanes_first(size_t n, lanes a, lanes b) {
    return _mm512_mask_blend_epi8(((uint64_t)1 << n) - 1, b, a);
}

static inline __attribute__((always_inline)) void lanes_store(int8_t *at, lanes a) {
    _mm512_storeu_si512(at, a);
}

/* Store the signs, one bit for each lane. */
static inline __attribute__((always_inline)) void lanes_store_signs(uint8_t *bits, lanes a) {
    const uint64_t word = _mm512_movepi8_mask(a);
    memcpy(bits, &word, sizeof word);
}

/* Is a bit set? */
static inline __attribute__((always_inline)) int bits_any(ldpc_bits some) {
    return _mm512_test_epi64_mask((__m512i)some, (__m512i)some) != 0;
}

#endif
