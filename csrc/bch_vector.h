/* Locator polynomial and roots of a BCH word in vectors of bytes.
 *
 * This file owns the loops; a field element is a low byte in one vector and a high byte in another.
 * Before it, a form defines: WIDTH, bytes of a vector; bytes_vector; load_bytes, store_bytes;
 * packed_map and bch_map, a linear map of elements as stored and as applied; pack, add_packed and
 * unpack; apply, which adds the image of elements to two vectors; zero_elements, a bit mask; TILE,
 * vectors of positions at a time; PART, the names of functions. It does not own these.
 * Source: as bch.c.
 */

typedef struct {
    uint8_t low[5 * ONDIE_BCH_T + 2 * WIDTH];
    uint8_t high[5 * ONDIE_BCH_T + 2 * WIDTH];
} bch_elements;

/* As locator_plain of bch.c. */
static int PART(locator)(const ondie_bch *code, const uint16_t *syndromes, uint16_t *lambda) {
    const int t = code->t, top = 3 * t, size = top + 2;
    bch_elements d, e;
    memset(&d, 0, sizeof d);
    memset(&e, 0, sizeof e);
    for (int i = 0; i < 2 * t; i++) {
        d.low[i] = e.low[i + 1] = (uint8_t)syndromes[i];
        d.high[i] = e.high[i + 1] = (uint8_t)(syndromes[i] >> 8);
    }
    d.low[top] = e.low[top + 1] = 1;
    bch_map gamma = unpack(pack(code, 0, 1));
    int length = 0;
    for (int step = 0; step < 2 * t; step += 2) {
        uint8_t *low = d.low + step, *high = d.high + step;
        const uint32_t discrepancy = low[0] | (uint32_t)high[0] << 8;
        if (!discrepancy) {
            int left = step;
            while (left < 2 * t && !(d.low[left] | d.high[left])) left++;
            if (left == 2 * t) break;
            continue;
        }
        const int change = 2 * length <= step;
        if (change) length = step + 1 - length;
        if (length > t) return -1;
        const bch_map delta = unpack(pack(code, 0, discrepancy));
        for (int i = 0; i < size; i += WIDTH) {
            const bytes_vector d_low = load_bytes(low + i), d_high = load_bytes(high + i);
            const bytes_vector e_low = load_bytes(e.low + i), e_high = load_bytes(e.high + i);
            bytes_vector sum_low = no_bytes(), sum_high = no_bytes();
            apply(&gamma, d_low, d_high, &sum_low, &sum_high);
            apply(&delta, e_low, e_high, &sum_low, &sum_high);
            store_bytes(low + i, sum_low);
            store_bytes(high + i, sum_high);
            if (change) {
                store_bytes(e.low + i, d_low);
                store_bytes(e.high + i, d_high);
            }
        }
        if (change) gamma = delta;
    }
    for (int i = 0; i <= length; i++)
        lambda[i] = (uint16_t)(d.low[top + i] | d.high[top + i] << 8);
    return length;
}

/* Evaluate lambda at `tile` vectors of positions; write the roots among them. */
static inline __attribute__((always_inline)) int search(const ondie_bch *code,
                                                        const packed_map *maps, int odds,
                                                        uint32_t constant, int first, int tile,
                                                        int start, int degree, int32_t *positions,
                                                        int found) {
    bytes_vector low[TILE], high[TILE];
    for (int i = 0; i < tile; i++) {
        low[i] = all_bytes((uint8_t)constant);
        high[i] = all_bytes((uint8_t)(constant >> 8));
    }
    const uint8_t *at = code->powers + first;
    for (int j = 0; j < odds; j++, at += 2 * code->span) {
        const bch_map map = unpack(maps[j]);
        for (int i = 0; i < tile; i++)
            apply(&map, load_bytes(at + WIDTH * i), load_bytes(at + code->span + WIDTH * i),
                  low + i, high + i);
    }
    for (int i = 0; i < tile; i++) {
        uint64_t roots = zero_elements(low[i], high[i]);
        for (; roots; roots &= roots - 1) {
            const int place = start + first + WIDTH * i + __builtin_ctzll(roots);
            if (place < bch_bits(code) && found < degree) positions[found++] = place;
        }
    }
    return found;
}

/* As bch_roots of bch.h, with bytes of x^j in place of planes. */
static int PART(roots)(const ondie_bch *code, uint16_t *lambda, int degree, int32_t *positions) {
    packed_map maps[BCH_LOCATOR / 2];
    const int odds = (degree + 1) / 2;
    int found = 0;
    if (degree == 1) return bch_root(code, lambda, positions);
    for (int span = 0; span < code->spans; span++) {
        const int start = span * code->span;
        for (int j = 0; j < odds; j++) {
            maps[j] = pack(code, 0, lambda[2 * j + 1]);
            for (int k = 1, term = 4 * j + 2; term <= degree; k++, term *= 2)
                add_packed(maps + j, pack(code, k, lambda[term]));
        }
        int first = 0;
        for (; first + TILE * WIDTH <= code->span; first += TILE * WIDTH)
            found = search(code, maps, odds, lambda[0], first, TILE, start, degree, positions,
                           found);
        for (; first < code->span; first += WIDTH)
            found = search(code, maps, odds, lambda[0], first, 1, start, degree, positions, found);
        if (found == degree) return found;
        bch_next_span(code, lambda, degree);
    }
    return found;
}

static void PART(syndromes)(const ondie_bch *code, const uint64_t *rest, uint16_t *odd) {
    bch_syndromes(code, rest, odd);
}

/* --- remainder: the sum of words times powers of x mod g, then a division (Barrett) --- */

/* Divide `sum`, words + 1 long and of less than degree + 63 bits, by g. */
static void divide(const ondie_bch *code, const uint64_t *sum, uint64_t *rest) {
    const int words = code->words, used = code->degree - 64 * (words - 1); /* 1 to 64 */
    const uint64_t high = used == 64 ? sum[words]
                                     : sum[words - 1] >> used | sum[words] << (64 - used);
    uint64_t product[2];
    carryless(high, code->inverse, product);
    const uint64_t quotient = high ^ product[1];
    uint64_t carry = 0;
    for (int j = 0; j < words; j++) {
        carryless(quotient, code->generator[j], product);
        rest[j] = sum[j] ^ product[0] ^ carry;
        carry = product[1];
    }
    if (used < 64) rest[words - 1] &= (1ull << used) - 1;
}

enum { TAIL = 128 };

/* Put the last data, less than a block, and the CRC into blocks. Return the number of blocks. */
static inline int tail_blocks(const ondie_bch *code, const uint8_t *data, uint32_t crc,
                              uint8_t *tail) {
    const int whole = code->data_bytes / 64 * 64, left = code->data_bytes - whole;
    const uint64_t word = crc;
    memset(tail, 0, TAIL);
    memcpy(tail, data + whole, (size_t)left);
    if (code->crc) memcpy(tail + (left + 7) / 8 * 8, &word, sizeof word);
    return code->blocks - whole / 64;
}

/* Sum of products of a group of columns; the 128-bit products overlap by 64 bits. */
static inline __attribute__((always_inline)) void add_group(const ondie_bch *code,
                                                            const uint8_t *data,
                                                            const uint8_t *tail, int after,
                                                            const uint64_t *dot, int columns,
                                                            uint64_t *sum) {
    product_vector product[12];
    for (int j = 0; j < columns; j++) product[j] = no_product();
    for (int whole = code->data_bytes / 64; whole--; data += 64, dot += 8 * columns)
        add_block(data, dot, columns, product);
    for (; after--; tail += 64, dot += 8 * columns) add_block(tail, dot, columns, product);
    for (int j = 0; j < columns; j++) {
        uint64_t both[2];
        fold_product(product[j], both);
        sum[j] ^= both[0];
        sum[j + 1] ^= both[1];
    }
}

static void PART(remainder)(const ondie_bch *code, const uint8_t *data, uint32_t crc,
                            const uint8_t *check, uint64_t *rest) {
    uint64_t sum[BCH_WORDS] = {0};
    _Alignas(64) uint8_t tail[TAIL];
    const int after = tail_blocks(code, data, crc, tail);
    if (check) memcpy(sum, check, (size_t)code->parity_bytes);
    for (int i = 0; i < code->groups; i++) {
        const uint64_t *dot = code->dot + (size_t)i * (size_t)(code->blocks * code->group * 8);
        uint64_t *to = sum + i * code->group;
        switch (code->group) {
#define COLUMNS(n) case n: add_group(code, data, tail, after, dot, n, to); break
            COLUMNS(1); COLUMNS(2); COLUMNS(3); COLUMNS(4); COLUMNS(5); COLUMNS(6);
            COLUMNS(7); COLUMNS(8); COLUMNS(9); COLUMNS(10); COLUMNS(11);
            default: add_group(code, data, tail, after, dot, 12, to);
        }
    }
    divide(code, sum, rest);
}
