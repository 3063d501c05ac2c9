/* BCH codes with a CRC-32C inside of the word: encoding, check and correction.
 *
 * This file owns the public functions and the parts for any processor. It does not own the vector
 * parts (bch_avx2.c, bch_avx512.c), the construction of a code (kernels/bch_code.py) or the CRC
 * (crc.c).
 * Source: Lin and Costello, "Error Control Coding", 2nd ed., ch. 6; Burton, "Inversionless decoding
 * of binary BCH codes", IEEE Trans. Inf. Theory 17(4), 1971.
 */
#include "bch.h"

/* --- parts for any processor --- */

static uint32_t half_at(const uint8_t *bytes) {
    uint32_t half;
    memcpy(&half, bytes, sizeof half);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    half = __builtin_bswap32(half);
#endif
    return half;
}

/* Divide by g, four bytes at a time from the highest power; then bit by bit what is left. */
static void remainder_plain(const ondie_bch *code, const uint8_t *data, uint32_t crc,
                            const uint8_t *check, uint64_t *rest) {
    uint8_t bytes[BCH_BYTES] = {0};
    uint32_t word[BCH_BYTES / 4];
    const int parity = code->parity_bytes, degree = code->degree;
    const int size = bch_bits(code) / 8, width = (degree + 31) / 32;
    if (check) memcpy(bytes, check, (size_t)parity);
    if (code->crc)
        for (int i = 0; i < 4; i++) bytes[parity + i] = (uint8_t)(crc >> 8 * i);
    memcpy(bytes + bch_check_bytes(code), data, (size_t)code->data_bytes);
    const int words = (size + 3) / 4;
    for (int i = 0; i < words || i < width; i++) word[i] = half_at(bytes + 4 * i);
    for (int i = words - 1; i >= width; i--) {
        const uint32_t high = word[i];
        const uint32_t *row[4];
        for (int k = 0; k < 4; k++)
            row[k] = code->rows + (256 * k + (int)(high >> 8 * k & 255)) * width;
        uint32_t *to = word + i - width;
        for (int j = 0; j < width; j++) to[j] ^= row[0][j] ^ row[1][j] ^ row[2][j] ^ row[3][j];
    }
    memset(rest, 0, (size_t)code->words * sizeof *rest);
    for (int j = 0; j < width; j++) rest[j / 2] |= (uint64_t)word[j] << 32 * (j % 2);
    for (int bit = 32 * width - 1; bit >= degree; bit--) { /* all in the highest word */
        if (!(rest[bit / 64] >> bit % 64 & 1)) continue;
        rest[bit / 64] ^= 1ull << bit % 64;
        const int shift = bit - degree;
        for (int j = code->words - 1; j >= 0; j--) {
            rest[j] ^= code->generator[j] << shift;
            if (shift && j) rest[j] ^= code->generator[j - 1] >> (64 - shift);
        }
    }
}

static void syndromes_plain(const ondie_bch *code, const uint64_t *rest, uint16_t *odd) {
    bch_syndromes(code, rest, odd);
}

/* Berlekamp-Massey without inversions. The discrepancies of a binary code are 0 in every second
 * step. d holds lambda(x) S(x), e holds b(x) S(x), so that a discrepancy is one coefficient.
 */
static int locator_plain(const ondie_bch *code, const uint16_t *syndromes, uint16_t *lambda) {
    const int t = code->t, top = 3 * t, size = top + 2;
    uint16_t d[5 * ONDIE_BCH_T + 8] = {0}, e[3 * ONDIE_BCH_T + 8] = {0};
    for (int i = 0; i < 2 * t; i++) d[i] = e[i + 1] = syndromes[i];
    d[top] = e[top + 1] = 1; /* lambda and b behind the products: x^top times them */
    uint32_t gamma = 1;
    int length = 0;
    for (int step = 0; step < 2 * t; step += 2) {
        uint16_t *now = d + step;
        const uint32_t delta = now[0];
        if (!delta) {
            int left = step;
            while (left < 2 * t && !d[left]) left++;
            if (left == 2 * t) break; /* no discrepancy follows */
            continue;
        }
        const int change = 2 * length <= step;
        if (change) length = step + 1 - length;
        if (length > t) return -1;
        for (int i = 0; i < size; i++) {
            const uint16_t before = now[i];
            now[i] = (uint16_t)(bch_multiply(code, gamma, before) ^
                                bch_multiply(code, delta, e[i]));
            if (change) e[i] = before;
        }
        if (change) gamma = delta;
    }
    memcpy(lambda, d + top, (size_t)(length + 1) * sizeof *lambda);
    return length;
}

static int roots_plain(const ondie_bch *code, uint16_t *lambda, int degree, int32_t *positions) {
    return bch_roots(code, lambda, degree, positions);
}

static const ondie_bch_parts plain = {remainder_plain, syndromes_plain, locator_plain,
                                      roots_plain};

/* --- public functions --- */

int ondie_bch_form(int isa) {
#if defined(__x86_64__)
    if (isa == ONDIE_AVX512 && __builtin_cpu_supports("gfni") &&
        __builtin_cpu_supports("vpclmulqdq"))
        return ONDIE_BCH_GFNI;
    if (isa != ONDIE_BASE && __builtin_cpu_supports("pclmul")) return ONDIE_BCH_CLMUL;
#endif
    (void)isa;
    return ONDIE_BCH_PLAIN;
}

static const ondie_bch_parts *parts_of(int form) {
#if defined(__x86_64__)
    if (form == ONDIE_BCH_GFNI) return &ondie_bch_avx512;
    if (form == ONDIE_BCH_CLMUL) return &ondie_bch_avx2;
#endif
    (void)form;
    return &plain;
}

static uint32_t crc_of(int form, const ondie_bch *code, const uint8_t *data) {
    const int isa = form == ONDIE_BCH_PLAIN ? ONDIE_BASE : ONDIE_AVX2;
    return ondie_crc32c(isa, 0, data, (size_t)code->data_bytes);
}

static int crc_agrees(int form, const ondie_bch *code, const uint8_t *data, const uint8_t *check) {
    return !code->crc || crc_of(form, code, data) == half_at(check + code->parity_bytes);
}

static int is_zero(const ondie_bch *code, const uint64_t *rest) {
    uint64_t any = 0;
    for (int i = 0; i < code->words; i++) any |= rest[i];
    return !any;
}

void ondie_bch_encode(int form, const ondie_bch *code, const uint8_t *data, uint8_t *check,
                      size_t count) {
    const ondie_bch_parts *parts = parts_of(form);
    for (; count--; data += code->data_bytes, check += bch_check_bytes(code)) {
        uint64_t rest[BCH_WORDS];
        const uint32_t crc = code->crc ? crc_of(form, code, data) : 0;
        parts->remainder(code, data, crc, 0, rest);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        for (int i = 0; i < code->words; i++) rest[i] = __builtin_bswap64(rest[i]);
#endif
        memcpy(check, rest, (size_t)code->parity_bytes);
        if (code->crc)
            for (int i = 0; i < 4; i++) check[code->parity_bytes + i] = (uint8_t)(crc >> 8 * i);
    }
}

static void divide(const ondie_bch_parts *parts, const ondie_bch *code, const uint8_t *data,
                   const uint8_t *check, uint64_t *rest) {
    parts->remainder(code, data, code->crc ? half_at(check + code->parity_bytes) : 0, check, rest);
}

void ondie_bch_check(int form, const ondie_bch *code, const uint8_t *data, const uint8_t *check,
                     size_t count, int verify, uint8_t *clean) {
    const ondie_bch_parts *parts = parts_of(form);
    for (; count--; data += code->data_bytes, check += bch_check_bytes(code)) {
        uint64_t rest[BCH_WORDS];
        divide(parts, code, data, check, rest);
        *clean++ = is_zero(code, rest) && (!verify || crc_agrees(form, code, data, check));
    }
}

/* Invert the bits at `positions` of a word. */
static void flip(const ondie_bch *code, uint8_t *data, uint8_t *check, const int32_t *positions,
                 int count) {
    const int first = bch_check_bytes(code);
    for (int i = 0; i < count; i++) {
        const int byte = positions[i] / 8;
        uint8_t *at = byte < first ? check + byte : data + (byte - first);
        *at ^= (uint8_t)(1 << positions[i] % 8);
    }
}

/* Find the wrong bits of a word with remainder `rest`. Return their number or the failure. */
static int find(const ondie_bch_parts *parts, const ondie_bch *code, const uint64_t *rest,
                int32_t *positions) {
    uint16_t odd[BCH_LANES], syndromes[2 * ONDIE_BCH_T], lambda[BCH_LOCATOR] = {0};
    parts->syndromes(code, rest, odd);
    for (int i = 0; i < code->t; i++) { /* at a^(2 i + 1); at a^(2 i + 2) the square of a^(i + 1) */
        syndromes[2 * i] = odd[i];
        syndromes[2 * i + 1] = (uint16_t)bch_multiply(code, syndromes[i], syndromes[i]);
    }
    const int degree = parts->locator(code, syndromes, lambda);
    if (degree < 0 || parts->roots(code, lambda, degree, positions) != degree)
        return ONDIE_BCH_UNCORRECTABLE;
    return degree;
}

void ondie_bch_decode(int form, const ondie_bch *code, uint8_t *data, uint8_t *check, size_t count,
                      int verify, int32_t *result) {
    const ondie_bch_parts *parts = parts_of(form);
    for (; count--; data += code->data_bytes, check += bch_check_bytes(code)) {
        uint64_t rest[BCH_WORDS];
        int32_t positions[BCH_LOCATOR];
        divide(parts, code, data, check, rest);
        int wrong = is_zero(code, rest) ? 0 : find(parts, code, rest, positions);
        if (wrong >= 0) {
            flip(code, data, check, positions, wrong);
            if (verify && !crc_agrees(form, code, data, check)) {
                flip(code, data, check, positions, wrong);
                wrong = ONDIE_BCH_MISCORRECTED;
            }
        }
        *result++ = wrong;
    }
}
