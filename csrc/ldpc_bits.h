/* Quasi-cyclic LDPC code: words as columns of bits, checks, encoding and bit flipping.
 *
 * This file owns the memory of a call and what is done with bits, for little-endian processors. It
 * does not own messages (ldpc.c, which includes it), the choice of the matrix (kernels/ldpc.py,
 * which has the definition), or the CRC (crc.c).
 * Source: the papers that kernels/ldpc.py names.
 *
 * Bits of a column are followed by copies of themselves, so that any rotation of them is one range.
 */
#ifndef ONDIE_LDPC_BITS_H
#define ONDIE_LDPC_BITS_H

enum { ROWS = ONDIE_LDPC_ROWS, BLOCK = sizeof(ldpc_bits), PAD = 64, TURNS = 8 };

/* A column in a row: where its totals are, and where bits say which first answers are negative; its
 * shift, and its number.
 */
typedef struct {
    int8_t *total;
    uint8_t *negative;
    size_t shift, column;
} ldpc_edge;

/* Memory of a call. */
typedef struct {
    const ondie_ldpc *code;
    size_t bytes;  /* of a column */
    size_t stride; /* from a column of bits to the next */
    uint8_t *bits, *checks, *read; /* read: the word */
    uint8_t *turned; /* of each row, its checks turned by 1 to TURNS - 1 */
    uint8_t *stored; /* mask of the bits of the last data column that are stored, */
    int8_t *keep;    /* the same in bytes */
    int8_t *total, *queue;
    int8_t *answers; /* of each row, MESSAGES checks at a time */
    uint8_t *negative; /* of each row and its columns, which first answers are */
    ldpc_edge *edges; /* of a row */
    uint32_t *terms;  /* of each row and shift modulo TURNS, where in `bits` a check begins */
    uint32_t ends[ROWS][TURNS];
} ldpc_work;

#define INLINE static inline __attribute__((always_inline))

static size_t ldpc_stride(size_t bytes) { return 2 * (bytes < BLOCK ? BLOCK : bytes); }

INLINE size_t ldpc_padded(size_t bytes) { return (bytes + PAD - 1) / PAD * PAD; }

/* Take `bytes` from the memory that begins at *memory, aligned as that is. */
INLINE void *FN(take)(uintptr_t *memory, size_t bytes) {
    const uintptr_t found = *memory;
    *memory += ldpc_padded(bytes);
    return (void *)found;
}

/* Divide `memory`. Return its bytes. */
static size_t FN(divide)(ldpc_work *work, const ondie_ldpc *code, uint8_t *memory) {
    const size_t size = (size_t)code->circulant, columns = (size_t)code->columns;
    uintptr_t at = (uintptr_t)memory;
    work->code = code;
    work->bytes = size / 8;
    work->stride = ldpc_stride(work->bytes);
    work->total = FN(take)(&at, columns * (size + PAD));
    work->answers = FN(take)(&at, ROWS * size * columns);
    work->negative = FN(take)(&at, ROWS * columns * ldpc_padded(work->bytes));
    work->queue = FN(take)(&at, columns * PAD);
    work->keep = FN(take)(&at, size + PAD);
    work->edges = FN(take)(&at, columns * sizeof(ldpc_edge));
    work->terms = FN(take)(&at, ROWS * columns * sizeof(uint32_t));
    work->bits = FN(take)(&at, columns * work->stride);
    work->checks = FN(take)(&at, ROWS * work->stride);
    work->turned = FN(take)(&at, ROWS * (TURNS - 1) * work->stride);
    work->stored = FN(take)(&at, work->bytes + PAD);
    work->read = FN(take)(&at, (size_t)code->word_bytes);
    return (size_t)(at - (uintptr_t)memory);
}

static size_t FN(ldpc_memory)(const ondie_ldpc *code) {
    ldpc_work work;
    return FN(divide)(&work, code, 0);
}

INLINE ldpc_bits FN(bits_load)(const uint8_t *at) {
    ldpc_bits found;
    memcpy(&found, at, sizeof found);
    return found;
}

/* Return bits `shift` and following. Both words have the bits in the middle. */
INLINE ldpc_bits FN(turned)(const uint8_t *bits, uint32_t shift) {
    const uint8_t *const at = bits + shift / 8;
    return FN(bits_load)(at) >> (shift & 7) | FN(bits_load)(at + 1) << (8 - (shift & 7));
}

INLINE void FN(write_block)(const ldpc_work *work, uint8_t *bits, size_t at, ldpc_bits found) {
    if (work->bytes < BLOCK)
        memcpy(bits + at, &found, work->bytes);
    else
        memcpy(bits + at, &found, BLOCK);
}

/* Complete a column whose first bytes are written. */
INLINE void FN(repeat)(const ldpc_work *work, uint8_t *bits) {
    if (work->bytes >= BLOCK)
        for (size_t at = 0; at < work->bytes; at += BLOCK)
            memcpy(bits + work->bytes + at, bits + at, BLOCK);
    else
        for (size_t at = work->bytes; at < work->stride; at += work->bytes)
            memcpy(bits + at, bits, work->bytes);
}

/* Take the stored bytes of a word apart into the first `count` columns; the others are 0. */
static void FN(columns_of)(const ldpc_work *work, const uint8_t *word, int count) {
    size_t left = (size_t)work->code->stored_bits / 8;
    const int data = work->code->columns - ROWS;
    for (int c = 0; c < work->code->columns; c++) {
        if (c == data) left = ROWS * work->bytes;
        const size_t some = c >= count ? 0 : left < work->bytes ? left : work->bytes;
        uint8_t *const bits = work->bits + (size_t)c * work->stride;
        memcpy(bits, word, some);
        if (some < work->bytes) memset(bits + some, 0, work->bytes - some);
        FN(repeat)(work, bits);
        word += some;
        left -= some;
    }
}

static void FN(word_of)(const ldpc_work *work, uint8_t *word) {
    size_t left = (size_t)work->code->stored_bits / 8;
    const int data = work->code->columns - ROWS;
    for (int c = 0; c < work->code->columns; c++) {
        if (c == data) left = ROWS * work->bytes;
        const size_t some = left < work->bytes ? left : work->bytes;
        memcpy(word, work->bits + (size_t)c * work->stride, some);
        word += some;
        left -= some;
    }
}

/* Sort the columns of each row by their shift modulo TURNS. */
static void FN(set_terms)(ldpc_work *work) {
    const uint32_t columns = (uint32_t)work->code->columns;
    const int32_t *shift = work->code->shifts;
    uint32_t end = 0;
    for (int row = 0; row < ROWS; row++, shift += columns) {
        uint32_t *const ends = work->ends[row];
        memset(ends, 0, sizeof work->ends[row]);
        for (uint32_t c = 0; c < columns; c++)
            if (shift[c] >= 0) ends[shift[c] % TURNS]++;
        for (int turn = 0; turn < TURNS; turn++) {
            const uint32_t count = ends[turn];
            ends[turn] = end;
            end += count;
        }
        for (uint32_t c = 0; c < columns; c++)
            if (shift[c] >= 0)
                work->terms[ends[shift[c] % TURNS]++] =
                    c * (uint32_t)work->stride + (uint32_t)shift[c] / TURNS;
    }
}

/* Divide `memory` and set what all words have in common. */
static void FN(ldpc_prepare)(ldpc_work *work, const ondie_ldpc *code, uint8_t *memory) {
    const size_t size = (size_t)code->circulant, columns = (size_t)code->columns;
    FN(divide)(work, code, memory);
    FN(set_terms)(work);
    const size_t known = (columns - ROWS) * size - (size_t)code->stored_bits;
    memset(work->keep, -1, size - known);
    memset(work->keep + size - known, 0, known);
    memcpy(work->keep + size, work->keep, PAD);
    memset(work->stored, 0, work->bytes + PAD);
    memset(work->stored, -1, (size - known) / 8);
}

/* Return the number of set bits of a column. */
INLINE int FN(set_bits)(const ldpc_work *work, const uint8_t *bits) {
    int count = 0;
    for (size_t at = 0; at < work->bytes; at += 8) {
        uint64_t some;
        memcpy(&some, bits + at, sizeof some);
        count += __builtin_popcountll(some);
    }
    return count;
}

/* Write `blocks` blocks of a row's checks from byte `at` on. term: the first of the row. */
INLINE void FN(row_checks)(const ldpc_work *work, int row, const uint32_t *term, size_t at,
                           int blocks) {
    const uint8_t *const bits = work->bits + at;
    const uint32_t *end = work->terms + work->ends[row][0];
    ldpc_bits sum[2] = {{0}, {0}};
    for (; term < end; term++)
        for (int b = 0; b < blocks; b++) sum[b] ^= FN(bits_load)(bits + *term + b * BLOCK);
    for (int turn = 1; turn < TURNS; turn++) {
        end = work->terms + work->ends[row][turn];
        if (term == end) continue;
        ldpc_bits here[2] = {{0}, {0}}, next[2] = {{0}, {0}};
        do
            for (int b = 0; b < blocks; b++) {
                here[b] ^= FN(bits_load)(bits + *term + b * BLOCK);
                next[b] ^= FN(bits_load)(bits + *term + b * BLOCK + 1);
            }
        while (++term < end);
        for (int b = 0; b < blocks; b++) sum[b] ^= here[b] >> turn | next[b] << (TURNS - turn);
    }
    for (int b = 0; b < blocks; b++)
        FN(write_block)(work, work->checks + (size_t)row * work->stride, at + (size_t)b * BLOCK,
                        sum[b]);
}

/* Write the checks of the bits, 1 where they fail. Return how many do. */
static __attribute__((noinline)) int FN(failed_checks)(const ldpc_work *work) {
    const uint32_t *first = work->terms;
    int failed = 0;
    for (int row = 0; row < ROWS; row++) {
        uint8_t *const checks = work->checks + (size_t)row * work->stride;
        if (work->bytes > BLOCK)
            for (size_t at = 0; at < work->bytes; at += 2 * BLOCK)
                FN(row_checks)(work, row, first, at, 2);
        else
            FN(row_checks)(work, row, first, 0, 1);
        first = work->terms + work->ends[row][TURNS - 1];
        FN(repeat)(work, checks);
        failed += FN(set_bits)(work, checks);
    }
    return failed;
}

static void FN(ldpc_encode)(const ondie_ldpc *code, const uint8_t *data, uint8_t *words,
                            size_t count, uint8_t *memory) {
    ldpc_work work;
    FN(ldpc_prepare)(&work, code, memory);
    const size_t size = (size_t)code->stored_bits / 8 - 4;
    for (size_t w = 0; w < count; w++, data += size, words += code->word_bytes) {
        memcpy(words, data, size);
        const uint32_t crc = ondie_crc32c(CRC_ISA, 0, data, size);
        memcpy(words + size, &crc, sizeof crc);
        FN(columns_of)(&work, words, code->columns - ROWS);
        FN(failed_checks)(&work);
        const int32_t *power = code->inverse, *start = code->inverse_start;
        uint8_t *parity = words + size + 4;
        for (int p = 0; p < ROWS; p++, parity += work.bytes, start += ROWS)
            for (size_t at = 0; at < work.bytes; at += BLOCK) {
                ldpc_bits sum = {0};
                for (int row = 0; row < ROWS; row++)
                    for (int32_t i = start[row]; i < start[row + 1]; i++)
                        sum ^= FN(turned)(work.checks + (size_t)row * work.stride + at,
                                          (uint32_t)power[i]);
                FN(write_block)(&work, parity, at, sum);
            }
    }
}

/* Write the failed checks turned by 1 to TURNS - 1, so that any turn of them begins at a byte. */
INLINE void FN(turn_checks)(const ldpc_work *work) {
    for (int row = 0; row < ROWS; row++) {
        const uint8_t *const checks = work->checks + (size_t)row * work->stride;
        for (uint32_t turn = 1; turn < TURNS; turn++) {
            uint8_t *const to =
                work->turned + ((size_t)row * (TURNS - 1) + turn - 1) * work->stride;
            for (size_t at = 0; at < work->bytes; at += BLOCK)
                FN(write_block)(work, to, at, FN(turned)(checks + at, turn));
            FN(repeat)(work, to);
        }
    }
}

/* Find where the checks of a column's bits begin, once they are turned. Return how many there are. */
INLINE int FN(checks_of)(const ldpc_work *work, size_t column, const uint8_t **from) {
    const size_t columns = (size_t)work->code->columns, size = (size_t)work->code->circulant;
    int weight = 0;
    for (size_t row = 0; row < ROWS; row++) {
        const int32_t shift = work->code->shifts[row * columns + column];
        if (shift < 0) continue;
        const size_t back = (size - (size_t)shift) & (size - 1), turn = back % TURNS;
        const uint8_t *const checks =
            turn ? work->turned + (row * (TURNS - 1) + turn - 1) * work->stride
                 : work->checks + row * work->stride;
        from[weight++] = checks + back / TURNS;
    }
    return weight;
}

/* Flip the bits all of whose checks fail or, with `fewer`, three. Return whether there is one. */
INLINE int FN(flip_where)(const ldpc_work *work, int fewer) {
    const size_t columns = (size_t)work->code->columns;
    int flipped = 0;
    for (size_t c = 0; c < columns; c++) {
        uint8_t *const bits = work->bits + c * work->stride;
        const uint8_t *from[ROWS];
        const int weight = FN(checks_of)(work, c, from);
        int changed = 0;
        for (size_t at = 0; at < work->bytes; at += BLOCK) {
            ldpc_bits all = FN(bits_load)(from[0] + at), any = ~(ldpc_bits){0};
            /* at most one of the checks so far is satisfied; none is */
            for (int i = 1; i < weight; i++) {
                const ldpc_bits failed = FN(bits_load)(from[i] + at);
                if (fewer) any &= all | failed;
                all &= failed;
            }
            if (fewer && weight == ROWS) all = any;
            if (c + 1 == columns - ROWS) all &= FN(bits_load)(work->stored + at);
            if (!bits_any(all)) continue;
            changed = 1;
            FN(write_block)(work, bits, at, FN(bits_load)(bits + at) ^ all);
        }
        if (changed) FN(repeat)(work, bits);
        flipped |= changed;
    }
    return flipped;
}

/* Flip the bits all of whose checks fail or, if there is none, three. Return whether one was. */
static __attribute__((noinline)) int FN(flip)(const ldpc_work *work) {
    FN(turn_checks)(work);
    return FN(flip_where)(work, 0) || FN(flip_where)(work, 1);
}

/* Correct the bits by flipping while the number of failed checks falls. failed: their number; most:
 * of rounds, which are added to `rounds`. Return whether all checks are satisfied.
 */
static int FN(flip_bits)(const ldpc_work *work, int failed, int most, int32_t *rounds) {
    while (most-- > 0 && FN(flip)(work)) {
        const int before = failed;
        failed = FN(failed_checks)(work);
        ++*rounds;
        if (failed == 0) return 1;
        if (failed >= before) break;
    }
    return 0;
}

#endif
