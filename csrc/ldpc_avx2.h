/* Vectors of 32 messages of 8 bits, for ldpc.c.
 *
 * This file does not decode. Source: Intel Intrinsics Guide.
 */
#ifndef ONDIE_LDPC_AVX2_H
#define ONDIE_LDPC_AVX2_H

typedef __m256i lanes;
enum { MESSAGES = 32 };

#define LANE static inline __attribute__((always_inline)) lanes

LANE lanes_load(const int8_t *at) { return _mm256_loadu_si256((const __m256i *)at); }
LANE lanes_all(int8_t value) { return _mm256_set1_epi8(value); }
LANE lanes_add(lanes a, lanes b) { return _mm256_add_epi8(a, b); }
LANE lanes_sub(lanes a, lanes b) { return _mm256_sub_epi8(a, b); }
LANE lanes_xor(lanes a, lanes b) { return _mm256_xor_si256(a, b); }
LANE lanes_abs(lanes a) { return _mm256_abs_epi8(a); }
LANE lanes_min(lanes a, lanes b) { return _mm256_min_epu8(a, b); }
LANE lanes_max(lanes a, lanes b) { return _mm256_max_epu8(a, b); }

/* Bits of a where those of mask are set, else of b. */
LANE lanes_bits(lanes mask, lanes a, lanes b) {
    return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
}

/* equal where a = b, else other. */
LANE lanes_equal(lanes a, lanes b, lanes equal, lanes other) {
    return _mm256_blendv_epi8(other, equal, _mm256_cmpeq_epi8(a, b));
}

/* -a where sign is negative, else a. */
LANE lanes_signed(lanes a, lanes sign) {
    return _mm256_sign_epi8(a, _mm256_or_si256(sign, _mm256_set1_epi8(1)));
}

/* a - ceil(a / 4), a not negative. */
LANE lanes_three_quarters(lanes a) {
    const lanes zero = _mm256_setzero_si256();
    return _mm256_sub_epi8(a, _mm256_avg_epu8(_mm256_avg_epu8(a, zero), zero));
}

/* Values for bits of 0 and 1, one for each bit. */
LANE lanes_of_bits(const uint8_t *bits, lanes zero, lanes one) {
    uint32_t word;
    memcpy(&word, bits, sizeof word);
    const lanes each = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    const lanes byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                          0x0303030303030303);
    const lanes copies = _mm256_shuffle_epi8(_mm256_set1_epi32((int32_t)word), byte);
    return lanes_equal(_mm256_and_si256(copies, each), each, one, zero);
}

/* a - b where bits are 1, else a. */
LANE lanes_sub_where(const uint8_t *bits, lanes a, lanes b) {
    return lanes_sub(a, lanes_of_bits(bits, lanes_all(0), b));
}

/* -a where bits are 1, else a. */
LANE lanes_signed_by(const uint8_t *bits, lanes a) {
    return lanes_of_bits(bits, a, lanes_sub(lanes_all(0), a));
}

#define EIGHT(value) value, value, value, value, value, value, value, value
/* The first n of a, then those of b. */
LANE lanes_first(size_t n, lanes a, lanes b) {
    static const int8_t mask[64] = {EIGHT(-1), EIGHT(-1), EIGHT(-1), EIGHT(-1)};
    return _mm256_blendv_epi8(b, a, lanes_load(mask + 32 - n));
}

static inline __attribute__((always_inline)) void lanes_store(int8_t *at, lanes a) {
    _mm256_storeu_si256((__m256i *)at, a);
}

/* Store the signs, one bit for each lane. */
static inline __attribute__((always_inline)) void lanes_store_signs(uint8_t *bits, lanes a) {
    const uint32_t word = (uint32_t)_mm256_movemask_epi8(a);
    memcpy(bits, &word, sizeof word);
}

/* Is a bit set? */
static inline __attribute__((always_inline)) int bits_any(ldpc_bits some) {
    __m256i half[2];
    memcpy(half, &some, sizeof some);
    const __m256i either = _mm256_or_si256(half[0], half[1]);
    return !_mm256_testz_si256(either, either);
}

#endif
