/* Parts of BCH codes that each form of the functions has, and what they share.
 *
 * This file owns the table of a form and the arithmetic of single field elements. It does not own
 * the order in which parts are called (bch.c).
 * Source: Lin and Costello, "Error Control Coding", 2nd ed., ch. 6.
 */
#ifndef ONDIE_BCH_H
#define ONDIE_BCH_H

#include <string.h>

#include "ondie.h"

enum {
    BCH_WORDS = 26,     /* of 64 bits: a remainder of 1,500 bits, and 64 more */
    BCH_BYTES = 4160,   /* of the longest word, 2^15 - 1 bits, and a block more */
    BCH_LANES = 128,    /* odd syndromes */
    BCH_LOCATOR = 104   /* coefficients of a locator polynomial */
};

/* Parts of a form.
 *
 * remainder: parity of the data and its CRC; with `check`, the word modulo g instead. [words].
 * syndromes: of a remainder, at a^1, a^3, ...: [lanes].
 * locator: locator polynomial of the syndromes at a^1, a^2, ..., a^(2 t), with the inverses of the
 *     error locations as roots. Return its degree, or -1 if more than t bits are wrong.
 * roots: positions of wrong bits. Return their number; it is the degree if all are found.
 */
typedef struct {
    void (*remainder)(const ondie_bch *, const uint8_t *data, uint32_t crc, const uint8_t *check,
                      uint64_t *rest);
    void (*syndromes)(const ondie_bch *, const uint64_t *rest, uint16_t *odd);
    int (*locator)(const ondie_bch *, const uint16_t *syndromes, uint16_t *lambda);
    int (*roots)(const ondie_bch *, uint16_t *lambda, int degree, int32_t *positions);
} ondie_bch_parts;

#if defined(__x86_64__)
extern const ondie_bch_parts ondie_bch_avx2;
extern const ondie_bch_parts ondie_bch_avx512;
#endif

static inline uint32_t bch_multiply(const ondie_bch *code, uint32_t a, uint32_t b) {
    return a && b ? code->exp[code->log[a] + code->log[b]] : 0;
}

static inline int bch_check_bytes(const ondie_bch *code) {
    return code->parity_bytes + (code->crc ? 4 : 0);
}

static inline int bch_bits(const ondie_bch *code) {
    return 8 * (code->data_bytes + bch_check_bytes(code));
}

/* Root of a locator polynomial of degree 1. */
static inline int bch_root(const ondie_bch *code, const uint16_t *lambda, int32_t *positions) {
    if (!lambda[1]) return 0;
    const int place = code->log[lambda[1]] - code->log[lambda[0]];
    positions[0] = place < 0 ? place + code->n : place;
    return positions[0] < bch_bits(code);
}

/* Replace lambda(x) by lambda(x a^-span): the next `span` positions. */
static inline void bch_next_span(const ondie_bch *code, uint16_t *lambda, int degree) {
    const int step = code->n - code->span % code->n;
    int64_t power = 0;
    for (int i = 1; i <= degree; i++) {
        power = (power + step) % code->n;
        lambda[i] = (uint16_t)bch_multiply(code, lambda[i], code->exp[power]);
    }
}

/* 64 bytes; the compiler divides them into the vectors that a form has. */
typedef uint16_t bch_lanes __attribute__((vector_size(64)));

static inline void bch_syndromes(const ondie_bch *code, const uint64_t *rest, uint16_t *odd) {
    const int digits = (code->degree + 3) / 4;
    for (int lane = 0; lane < code->lanes; lane += 32) {
        const uint16_t *table = code->syndromes + lane;
        bch_lanes sum = {0}, row;
        for (int i = 0; i < digits; i++, table += 16 * code->lanes) {
            const size_t digit = rest[i / 16] >> 4 * (i % 16) & 15;
            memcpy(&row, table + digit * (size_t)code->lanes, sizeof row);
            sum ^= row;
        }
        memcpy(odd + lane, &sum, sizeof sum);
    }
}

/* 64-bit word at a byte of a polynomial. */
static inline uint64_t bch_word(const uint8_t *bytes) {
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

#endif
