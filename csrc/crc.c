/* CRC-32C (Castagnoli).
 *
 * This file owns the checksum, with tables for any processor and with the processor's instruction
 * where there is one. It does not own what is checked (payload.c).
 * Source: RFC 3720, appendix B.4, polynomial 0x1EDC6F41, bits reversed; Intel, "Fast CRC
 * computation for iSCSI polynomial using CRC32 instruction", 2011 (three streams in parallel).
 */
#include <string.h>

#include "ondie.h"

enum { LENGTHS = 3 };
static const size_t stream[LENGTHS] = {1360, 336, 168}; /* bytes: a third of 4 KiB, 1 KiB, 512 B */
static const uint32_t reversed = 0x82f63b78;

static uint32_t table[8][256];       /* table[k][b]: byte b, followed by k zero bytes */
/* past_stream[i][k]: byte k of a checksum, followed by stream[i] zero bytes */
static uint32_t past_stream[LENGTHS][4][256];

/* Return the checksum of `crc` followed by `n` zero bytes. */
static uint32_t past_zeros(uint32_t crc, size_t n) {
    while (n--) crc = crc >> 8 ^ table[0][crc & 255];
    return crc;
}

__attribute__((constructor)) static void fill_tables(void) {
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? reversed : 0);
        table[0][b] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t b = 0; b < 256; b++) table[k][b] = past_zeros(table[k - 1][b], 1);
    for (int i = 0; i < LENGTHS; i++)
        for (int k = 0; k < 4; k++)
            for (uint32_t b = 1; b < 256; b++) { /* the sum of its highest bit and the others */
                const uint32_t high = 1u << (31 - __builtin_clz(b)), rest = b ^ high;
                past_stream[i][k][b] = past_stream[i][k][rest] ^
                                       (rest ? past_stream[i][k][high]
                                             : past_zeros(high << 8 * k, stream[i]));
            }
}

static uint64_t word_at(const uint8_t *data) {
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

static uint32_t by_table(uint32_t crc, const uint8_t *data, size_t n) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (; n >= 8; n -= 8, data += 8) {
        const uint64_t word = word_at(data) ^ crc;
        crc = 0;
        for (int k = 0; k < 8; k++) crc ^= table[7 - k][word >> 8 * k & 255];
    }
#endif
    while (n--) crc = crc >> 8 ^ table[0][(crc ^ *data++) & 255];
    return crc;
}

#if defined(__x86_64__)
/* Return the checksum of `crc` followed by as many zero bytes as `past` is for. */
static uint32_t after_stream(uint32_t past[4][256], uint32_t crc) {
    return past[0][crc & 255] ^ past[1][crc >> 8 & 255] ^ past[2][crc >> 16 & 255] ^
           past[3][crc >> 24];
}

/* Three streams at a time: the instruction takes three cycles, and one may start in each. */
__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *data,
                                                                 size_t n) {
    for (int k = 0; k < LENGTHS; k++) {
        const size_t bytes = stream[k];
        for (; n >= 3 * bytes; n -= 3 * bytes, data += 3 * bytes) {
            uint64_t a = crc, b = 0, c = 0;
            for (size_t i = 0; i < bytes; i += 8) {
                a = __builtin_ia32_crc32di(a, word_at(data + i));
                b = __builtin_ia32_crc32di(b, word_at(data + bytes + i));
                c = __builtin_ia32_crc32di(c, word_at(data + 2 * bytes + i));
            }
            const uint32_t two = after_stream(past_stream[k], (uint32_t)a) ^ (uint32_t)b;
            crc = after_stream(past_stream[k], two) ^ (uint32_t)c;
        }
    }
    uint64_t wide = crc;
    for (; n >= 8; n -= 8, data += 8) wide = __builtin_ia32_crc32di(wide, word_at(data));
    crc = (uint32_t)wide;
    while (n--) crc = __builtin_ia32_crc32qi(crc, *data++);
    return crc;
}
#endif

uint32_t ondie_crc32c(int isa, uint32_t crc, const uint8_t *data, size_t n) {
    crc = ~crc;
#if defined(__x86_64__)
    if (isa != ONDIE_BASE) return ~by_instruction(crc, data, n); /* AVX2 implies SSE4.2 */
#endif
    return ~by_table(crc, data, n);
}
