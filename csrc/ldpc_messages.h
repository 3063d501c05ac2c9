/* Answers of checks as whole messages, for processors without masks of lanes.
 *
 * This file owns the answers. It does not own the vectors (ldpc_base.h and ldpc_avx2.h, which include
 * it); ldpc_avx512.h keeps answers as bits. Source: this project.
 */
#ifndef ONDIE_LDPC_MESSAGES_H
#define ONDIE_LDPC_MESSAGES_H

/* What a check has answered. */
typedef struct {
    lanes message;
} answer;

LANE answer_of(const answer *kept, lanes low, lanes high) {
    (void)low, (void)high;
    return lanes_load((const int8_t *)kept);
}

/* Return a new answer and keep it: `high` where magnitude = least, -1 times that where sign < 0. */
LANE answer_to(answer *kept, lanes magnitude, lanes least, lanes sign, lanes low, lanes high) {
    const lanes found = lanes_signed(lanes_equal(magnitude, least, high, low), sign);
    lanes_store((int8_t *)kept, found);
    return found;
}

/* Keep answers of the same magnitude, negative where bits are 1. */
static inline __attribute__((always_inline)) void answer_equal(answer *kept, const uint8_t *bits,
                                                               int8_t magnitude) {
    lanes_store((int8_t *)kept, lanes_of_bits(bits, lanes_all(magnitude), lanes_all(-magnitude)));
}

#endif
