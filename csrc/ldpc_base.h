/* Vectors of 16 messages of 8 bits in C with vector extensions, for ldpc.c.
 *
 * This file does not decode. Source: manual of GCC, "Using Vector Instructions".
 */
#ifndef ONDIE_LDPC_BASE_H
#define ONDIE_LDPC_BASE_H

enum { MESSAGES = 16 };
typedef int8_t lanes __attribute__((vector_size(MESSAGES)));
typedef uint8_t magnitudes __attribute__((vector_size(MESSAGES)));
typedef uint64_t pair __attribute__((vector_size(MESSAGES)));

#define LANE static inline __attribute__((always_inline)) lanes

LANE lanes_load(const int8_t *at) {
    lanes found;
    memcpy(&found, at, sizeof found);
    return found;
}
LANE lanes_all(int8_t value) { return value - (lanes){0}; }
LANE lanes_add(lanes a, lanes b) { return (lanes)((magnitudes)a + (magnitudes)b); }
LANE lanes_sub(lanes a, lanes b) { return (lanes)((magnitudes)a - (magnitudes)b); }
LANE lanes_xor(lanes a, lanes b) { return a ^ b; }

/* Bits of a where those of mask are set, else of b. */
LANE lanes_bits(lanes mask, lanes a, lanes b) { return (mask & a) | (~mask & b); }

/* -a where sign is negative, else a. */
LANE lanes_signed(lanes a, lanes sign) {
    const lanes all = sign < 0;
    return lanes_sub(a ^ all, all);
}
LANE lanes_abs(lanes a) { return lanes_signed(a, a); }

/* The lesser and the larger magnitude, from 0 to 128. */
LANE lanes_min(lanes a, lanes b) {
    return lanes_bits((lanes)((magnitudes)a < (magnitudes)b), a, b);
}
LANE lanes_max(lanes a, lanes b) {
    return lanes_bits((lanes)((magnitudes)a < (magnitudes)b), b, a);
}

/* equal where a = b, else other. */
LANE lanes_equal(lanes a, lanes b, lanes equal, lanes other) {
    return lanes_bits((lanes)(a == b), equal, other);
}

/* a - ceil(a / 4), a not negative. */
LANE lanes_three_quarters(lanes a) { return a - ((a + 3) >> 2); }

/* Values for bits of 0 and 1, one for each bit. */
LANE lanes_of_bits(const uint8_t *bits, lanes zero, lanes one) {
    const lanes each = {1, 2, 4, 8, 16, 32, 64, -128, 1, 2, 4, 8, 16, 32, 64, -128};
    const uint64_t eight = 0x0101010101010101;
    const pair both = {bits[0] * eight, bits[1] * eight}; /* not by way of memory */
    const lanes copies = (lanes)both;
    return lanes_bits((lanes)((copies & each) == each), one, zero);
}

/* a - b where bits are 1, else a. */
LANE lanes_sub_where(const uint8_t *bits, lanes a, lanes b) {
    return lanes_sub(a, lanes_of_bits(bits, lanes_all(0), b));
}

/* -a where bits are 1, else a. */
LANE lanes_signed_by(const uint8_t *bits, lanes a) {
    return lanes_of_bits(bits, a, lanes_sub(lanes_all(0), a));
}

/* The first n of a, then those of b. */
LANE lanes_first(size_t n, lanes a, lanes b) {
    const lanes place = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return lanes_bits((lanes)(place < lanes_all((int8_t)n)), a, b);
}

static inline __attribute__((always_inline)) void lanes_store(int8_t *at, lanes a) {
    memcpy(at, &a, sizeof a);
}

/* Store the signs, one bit for each lane. */
static inline __attribute__((always_inline)) void lanes_store_signs(uint8_t *bits, lanes a) {
    const pair half = (pair)a;
    /* each sign to the highest byte of a product */
    for (int i = 0; i < 2; i++)
        bits[i] = (uint8_t)((half[i] >> 7 & 0x0101010101010101) * 0x0102040810204080 >> 56);
}

/* Is a bit set? */
static inline __attribute__((always_inline)) int bits_any(ldpc_bits some) {
    uint64_t any = 0;
    for (int i = 0; i < 8; i++) any |= some[i];
    return any != 0;
}

#endif
