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

/* What a check has answered: where negative, and where with the higher magnitude. */
typedef struct {
    uint64_t negative, high;
} answer;

LANE answer_of(const answer *kept, lanes low, lanes high) {
    const lanes found = _mm512_mask_blend_epi8(kept->high, low, high);
    return _mm512_mask_sub_epi8(found, kept->negative, _mm512_setzero_si512(), found);
}

/* Return a new answer and keep it: `high` where magnitude = least, -1 times that where sign < 0. */
LANE answer_to(answer *kept, lanes magnitude, lanes least, lanes sign, lanes low, lanes high) {
    *kept = (answer){_mm512_movepi8_mask(sign), _mm512_cmpeq_epi8_mask(magnitude, least)};
    return answer_of(kept, low, high);
}

/* Keep answers of the same magnitude, negative where bits are 1. */
static inline __attribute__((always_inline)) void answer_equal(answer *kept, const uint8_t *bits,
                                                               int8_t magnitude) {
    (void)magnitude;
    memcpy(&kept->negative, bits, sizeof kept->negative);
    kept->high = 0;
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
