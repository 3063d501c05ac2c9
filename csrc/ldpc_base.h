/* Vectors of 16 messages of 8 bits in plain C, for ldpc.c.
 *
 * This file does not decode. Source: this project.
 */
#ifndef ONDIE_LDPC_BASE_H
#define ONDIE_LDPC_BASE_H

enum { MESSAGES = 16 };
typedef struct {
    int8_t at[MESSAGES];
} lanes;

#define LANE static inline __attribute__((always_inline)) lanes
#define EACH(...)                                                          \
    {                                                                      \
        lanes found;                                                       \
        for (int i = 0; i < MESSAGES; i++) found.at[i] = (int8_t)(__VA_ARGS__); \
        return found;                                                      \
    }

LANE lanes_load(const int8_t *at) {
    lanes found;
    memcpy(found.at, at, MESSAGES);
    return found;
}
LANE lanes_all(int8_t value) EACH(value)
LANE lanes_add(lanes a, lanes b) EACH(a.at[i] + b.at[i])
LANE lanes_sub(lanes a, lanes b) EACH(a.at[i] - b.at[i])
LANE lanes_xor(lanes a, lanes b) EACH(a.at[i] ^ b.at[i])
LANE lanes_abs(lanes a) EACH(a.at[i] < 0 ? -a.at[i] : a.at[i])
LANE lanes_min(lanes a, lanes b) EACH(a.at[i] < b.at[i] ? a.at[i] : b.at[i])
LANE lanes_max(lanes a, lanes b) EACH(a.at[i] > b.at[i] ? a.at[i] : b.at[i])

/* Bits of a where those of mask are set, else of b. */
LANE lanes_bits(lanes mask, lanes a, lanes b) EACH((mask.at[i] & a.at[i]) | (~mask.at[i] & b.at[i]))

/* equal where a = b, else other. */
LANE lanes_equal(lanes a, lanes b, lanes equal, lanes other)
    EACH(a.at[i] == b.at[i] ? equal.at[i] : other.at[i])

/* -a where sign is negative, else a. */
LANE lanes_signed(lanes a, lanes sign) EACH(sign.at[i] < 0 ? -a.at[i] : a.at[i])

/* a - ceil(a / 4), a not negative. */
LANE lanes_three_quarters(lanes a) EACH(a.at[i] - ((a.at[i] + 3) >> 2))

/* Values for bits of 0 and 1, one for each bit. */
LANE lanes_of_bits(const uint8_t *bits, lanes zero, lanes one)
    EACH(bits[i / 8] >> i % 8 & 1 ? one.at[i] : zero.at[i])

/* The first n of a, then those of b. */
LANE lanes_first(size_t n, lanes a, lanes b) EACH((size_t)i < n ? a.at[i] : b.at[i])

static inline __attribute__((always_inline)) void lanes_store(int8_t *at, lanes a) {
    memcpy(at, a.at, MESSAGES);
}

/* Store the signs, one bit for each lane. */
static inline __attribute__((always_inline)) void lanes_store_signs(uint8_t *bits, lanes a) {
    bits[0] = bits[1] = 0;
    for (int i = 0; i < MESSAGES; i++) bits[i / 8] |= (uint8_t)((a.at[i] < 0) << i % 8);
}

/* What a check has answered. */
typedef struct {
    lanes message;
} answer;

LANE answer_of(const answer *kept, lanes low, lanes high) {
    (void)low, (void)high;
    return lanes_load((const int8_t *)kept);
}

/* Return a new answer and keep it: `high` where `is_high` is 0, -1 times that where sign < 0. */
LANE answer_to(answer *kept, lanes is_high, lanes sign, lanes low, lanes high) {
    const lanes found = lanes_signed(lanes_equal(is_high, lanes_all(0), high, low), sign);
    lanes_store((int8_t *)kept, found);
    return found;
}

#endif
