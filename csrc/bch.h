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

#ifndef BCH_VECTOR
#define BCH_VECTOR 16 /* bytes of a vector that every processor of a form has */
#endif
typedef uint16_t bch_lanes __attribute__((vector_size(BCH_VECTOR)));

/* Add `count` vectors to `sum`; a constant count leaves the sums in registers. */
static inline __attribute__((always_inline)) void bch_add(bch_lanes *sum, const void *from,
                                                              int count) {
    for (int k = 0; k < count; k++) {
        bch_lanes next;
        memcpy(&next, (const char *)from + k * BCH_VECTOR, sizeof next);
        sum[k] ^= next;
    }
}

static inline void bch_syndromes(const ondie_bch *code, const uint64_t *rest, uint16_t *odd) {
    const int digits = (code->degree + 3) / 4;
    for (int lane = 0; lane < code->lanes; lane += 32) {
        const uint16_t *table = code->syndromes + lane;
        bch_lanes sum[64 / BCH_VECTOR] = {{0}};
        for (int i = 0; i < digits; i++, table += 16 * code->lanes) {
            const size_t digit = rest[i / 16] >> 4 * (i % 16) & 15;
            bch_add(sum, table + digit * (size_t)code->lanes, 64 / BCH_VECTOR);
        }
        memcpy(odd + lane, sum, sizeof sum);
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

/* Which planes of a table are summed for each bit of a value. */
typedef struct {
    int count[16];
    uint16_t plane[16][BCH_LOCATOR / 2 * 16];
} bch_planes;

/* The sum of the terms j, 2 j, 4 j, ... of lambda is a linear map of the bits of x^j. */
static inline void bch_choose_planes(const ondie_bch *code, const uint16_t *lambda, int degree,
                                     bch_planes *chosen) {
    memset(chosen->count, 0, sizeof chosen->count);
    for (int j = 0; 2 * j < degree; j++)
        for (int bit = 0; bit < code->m; bit++) {
            uint32_t image = 0; /* of a^bit */
            for (int k = 0, term = 2 * j + 1; term <= degree; k++, term *= 2)
                if (lambda[term]) image ^= code->exp[code->log[lambda[term]] + (bit << k)];
            for (int i = 0; i < code->m; i++) {
                chosen->plane[i][chosen->count[i]] = (uint16_t)(j * code->m + bit);
                chosen->count[i] += (int)(image >> i & 1);
            }
        }
}

/* Find the roots of lambda among all positions, 1,024 at a time: the values are sums of planes,
 * which hold one bit of x^j for each position.
 */
static inline int bch_roots(const ondie_bch *code, uint16_t *lambda, int degree,
                            int32_t *positions) {
    const int bits = bch_bits(code), row = code->span / 8;
    bch_planes chosen;
    int found = 0;
    if (degree == 1) return bch_root(code, lambda, positions);
    for (int start = 0; start < bits && found < degree; start += code->span) {
        bch_choose_planes(code, lambda, degree, &chosen);
        for (int tile = 0; tile < row; tile += 128) {
            bch_lanes any[128 / BCH_VECTOR] = {{0}};
            for (int i = 0; i < code->m; i++) {
                const uint16_t *plane = chosen.plane[i];
                const uint16_t all = lambda[0] >> i & 1 ? 0xffff : 0;
                bch_lanes sum[128 / BCH_VECTOR];
                for (int k = 0; k < 128 / BCH_VECTOR; k++) sum[k] = (bch_lanes){0} + all;
                for (int count = chosen.count[i]; count--; plane++)
                    bch_add(sum, code->powers + (size_t)*plane * (size_t)row + tile,
                                128 / BCH_VECTOR);
                for (int k = 0; k < 128 / BCH_VECTOR; k++) any[k] |= sum[k];
            }
            for (int word = 0; word < 16; word++) {
                uint64_t zeros = ~bch_word((const uint8_t *)any + 8 * word);
                for (; zeros; zeros &= zeros - 1) {
                    const int place = start + 8 * tile + 64 * word + __builtin_ctzll(zeros);
                    if (place < bits && found < degree) positions[found++] = place;
                }
            }
        }
        bch_next_span(code, lambda, degree);
    }
    return found;
}

#endif
