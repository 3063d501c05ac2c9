/* Quasi-cyclic LDPC code: encoding, bit flipping and layered min-sum.
 *
 * This file owns the code words of ondie_ldpc in ondie.h, for little-endian processors. It does not
 * choose the matrix and does not invert it (kernels/ldpc.py), and takes the CRC from crc.c.
 * Source: the papers that kernels/ldpc.py names, which also has the definition.
 *
 * Bits of a column are followed by copies of themselves, so that any rotation of them is one range.
 * So are its totals, by those of one vector.
 */
#include "isa.h"
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi" /* vectors are passed between inlined functions only */
#endif
#ifdef ONDIE_LDPC_WIDE
#include ONDIE_LDPC_WIDE
enum { CRC_ISA = ONDIE_AVX2 }; /* of all that are wider */
#else
#include "ldpc_base.h"
enum { CRC_ISA = ONDIE_BASE };
#endif

typedef uint64_t ldpc_bits __attribute__((vector_size(64))); /* 512 bits of a column */

enum { ROWS = ONDIE_LDPC_ROWS, BLOCK = sizeof(ldpc_bits), PAD = 64 };

/* A column in a row: where its totals are, and its shift. */
typedef struct {
    int8_t *total;
    size_t shift;
} ldpc_edge;

/* Memory of a call. */
typedef struct {
    const ondie_ldpc *code;
    size_t bytes;  /* of a column */
    size_t stride; /* from a column of bits to the next */
    uint8_t *bits, *checks, *read; /* read: the word */
    uint8_t *stored; /* mask of the bits of the last data column that are stored, */
    int8_t *keep;    /* the same in bytes */
    int8_t *total, *queue;
    uint8_t *answers; /* of each row, 64 or fewer checks at a time */
    ldpc_edge *edges; /* of a row */
} ldpc_work;

static size_t ldpc_stride(size_t bytes) { return 2 * (bytes < BLOCK ? BLOCK : bytes) + PAD; }

#define INLINE static inline __attribute__((always_inline))

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

/* Complete a column whose first bytes are written. */
INLINE void FN(repeat)(const ldpc_work *work, uint8_t *bits) {
    for (size_t have = work->bytes; have < work->stride; have += work->bytes) {
        const size_t left = work->stride - have;
        memcpy(bits + have, bits, left < work->bytes ? left : work->bytes);
    }
}

INLINE void FN(write_block)(const ldpc_work *work, uint8_t *bits, size_t at, ldpc_bits found) {
    memcpy(bits + at, &found, work->bytes < BLOCK ? work->bytes : BLOCK);
}

/* Bytes of the answers of MESSAGES checks of a row, so many that vectors stay aligned. */
INLINE size_t FN(answer_bytes)(size_t columns) {
    return (2 * MESSAGES + columns * sizeof(answer) + PAD - 1) / PAD * PAD;
}

static size_t FN(ldpc_memory)(const ondie_ldpc *code) {
    const size_t size = (size_t)code->circulant, columns = (size_t)code->columns;
    return columns * (sizeof(ldpc_edge) + size + PAD) +
           ROWS * size / MESSAGES * FN(answer_bytes)(columns) + columns * PAD + size + PAD +
           (columns + ROWS) * ldpc_stride(size / 8) + size / 8 + PAD + (size_t)code->word_bytes;
}

/* Divide `memory` and set what all words have in common. */
static void FN(ldpc_prepare)(ldpc_work *work, const ondie_ldpc *code, uint8_t *memory) {
    const size_t size = (size_t)code->circulant, columns = (size_t)code->columns;
    work->code = code;
    work->bytes = size / 8;
    work->stride = ldpc_stride(work->bytes);
    work->total = (int8_t *)memory;
    work->answers = memory + columns * (size + PAD);
    work->queue = (int8_t *)work->answers + ROWS * size / MESSAGES * FN(answer_bytes)(columns);
    work->keep = work->queue + columns * PAD;
    work->edges = (ldpc_edge *)(void *)(work->keep + size + PAD);
    work->bits = (uint8_t *)(work->edges + columns);
    work->checks = work->bits + columns * work->stride;
    work->stored = work->checks + ROWS * work->stride;
    work->read = work->stored + work->bytes + PAD;
    const size_t known = (columns - ROWS) * size - (size_t)code->stored_bits;
    memset(work->keep, -1, size - known);
    memset(work->keep + size - known, 0, known);
    memcpy(work->keep + size, work->keep, PAD);
    memset(work->stored, 0, work->bytes + PAD);
    memset(work->stored, -1, (size - known) / 8);
}

/* Take the stored bytes of a word apart into columns. */
static void FN(columns_of)(const ldpc_work *work, const uint8_t *word, int count) {
    size_t left = (size_t)work->code->stored_bits / 8;
    const int data = work->code->columns - ROWS;
    for (int c = 0; c < count; c++) {
        if (c == data) left = ROWS * work->bytes;
        const size_t some = left < work->bytes ? left : work->bytes;
        uint8_t *const bits = work->bits + (size_t)c * work->stride;
        memcpy(bits, word, some);
        memset(bits + some, 0, work->bytes - some);
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

/* Return the sums of a row's first `count` columns from byte `at` on. */
INLINE ldpc_bits FN(row_sum)(const ldpc_work *work, int row, int count, size_t at) {
    const int32_t *const shifts = work->code->shifts + row * work->code->columns;
    ldpc_bits sum = {0};
    for (int c = 0; c < count; c++)
        if (shifts[c] >= 0)
            sum ^= FN(turned)(work->bits + (size_t)c * work->stride + at, (uint32_t)shifts[c]);
    return sum;
}

/* Return the number of set bits of a column's block. */
INLINE int FN(set_bits)(const ldpc_work *work, ldpc_bits some) {
    const size_t words = work->bytes < BLOCK ? work->bytes / 8 : BLOCK / 8;
    int count = 0;
    for (size_t i = 0; i < words; i++) count += __builtin_popcountll(some[i]);
    return count;
}

static void FN(ldpc_encode)(const ondie_ldpc *code, const uint8_t *data, uint8_t *words,
                            size_t count, uint8_t *memory) {
    ldpc_work work;
    FN(ldpc_prepare)(&work, code, memory);
    const size_t size = (size_t)code->stored_bits / 8 - 4;
    const int columns = code->columns - ROWS;
    for (size_t w = 0; w < count; w++, data += size, words += code->word_bytes) {
        memcpy(words, data, size);
        const uint32_t crc = ondie_crc32c(CRC_ISA, 0, data, size);
        memcpy(words + size, &crc, sizeof crc);
        FN(columns_of)(&work, words, columns);
        for (int row = 0; row < ROWS; row++) {
            uint8_t *const sums = work.checks + (size_t)row * work.stride;
            for (size_t at = 0; at < work.bytes; at += BLOCK)
                FN(write_block)(&work, sums, at, FN(row_sum)(&work, row, columns, at));
            FN(repeat)(&work, sums);
        }
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

/* Write the failed checks of the bits. Return their number. */
static __attribute__((noinline)) int FN(failed_checks)(const ldpc_work *work) {
    int failed = 0;
    for (int row = 0; row < ROWS; row++) {
        uint8_t *const checks = work->checks + (size_t)row * work->stride;
        for (size_t at = 0; at < work->bytes; at += BLOCK) {
            const ldpc_bits sum = FN(row_sum)(work, row, work->code->columns, at);
            failed += FN(set_bits)(work, sum);
            FN(write_block)(work, checks, at, sum);
        }
        FN(repeat)(work, checks);
    }
    return failed;
}

/* Flip the bits all of whose checks fail or, with `fewer`, three. Return whether there is one. */
static __attribute__((noinline)) int FN(flip)(const ldpc_work *work, int fewer) {
    const size_t data = (size_t)work->code->columns - ROWS;
    const int32_t *const shifts = work->code->shifts;
    int flipped = 0;
    for (size_t c = 0; c < data + ROWS; c++) {
        uint8_t *const bits = work->bits + c * work->stride;
        int changed = 0;
        for (size_t at = 0; at < work->bytes; at += BLOCK) {
            ldpc_bits any = ~(ldpc_bits){0}, all = any; /* at most one is satisfied; none is */
            for (size_t row = 0; row < ROWS; row++) {
                const int32_t shift = shifts[row * (data + ROWS) + c];
                if (shift < 0) continue;
                const uint32_t back = (uint32_t)(work->code->circulant - shift);
                const ldpc_bits failed =
                    FN(turned)(work->checks + row * work->stride + at, back);
                any &= all | failed;
                all &= failed;
            }
            if (fewer && shifts[c] >= 0 && shifts[data + ROWS + c] >= 0 &&
                shifts[2 * (data + ROWS) + c] >= 0 && shifts[3 * (data + ROWS) + c] >= 0)
                all = any;
            if (c + 1 == data) all &= FN(bits_load)(work->stored + at);
            if (!FN(set_bits)(work, all)) continue;
            changed = 1;
            FN(write_block)(work, bits, at, FN(bits_load)(bits + at) ^ all);
        }
        if (changed) FN(repeat)(work, bits);
        flipped |= changed;
    }
    return flipped;
}

/* Correct the bits by flipping while the number of failed checks falls. failed: their number; most:
 * of rounds, which are added to `rounds`. Return whether all checks are satisfied.
 */
static int FN(flip_bits)(const ldpc_work *work, int failed, int most, int32_t *rounds) {
    while (most-- > 0 && (FN(flip)(work, 0) || FN(flip)(work, 1))) {
        const int before = failed;
        failed = FN(failed_checks)(work);
        ++*rounds;
        if (failed == 0) return 1;
        if (failed >= before) break;
    }
    return 0;
}

/* Checks of a row, as many as a vector has lanes: the magnitudes that they have answered with, and what
 * they receive.
 */
typedef struct {
    lanes low, high, least, second, sign;
} ldpc_part;

/* Begin to receive. first: nothing has been answered yet. */
INLINE void FN(begin)(ldpc_part *part, const uint8_t *answers, int first) {
    part->low = first ? lanes_all(0) : lanes_load((const int8_t *)answers);
    part->high = first ? lanes_all(0) : lanes_load((const int8_t *)answers + MESSAGES);
    part->least = part->second = lanes_all(127);
    part->sign = lanes_all(0);
}

/* Receive what a column sends. keep: mask of its stored bits, null if all are. */
INLINE void FN(receive)(ldpc_part *part, const ldpc_edge *edge, size_t at, size_t size,
                        const int8_t *keep, const answer *kept, int8_t *queue, int first) {
    const size_t from = (at + edge->shift) & (size - 1);
    lanes sent = lanes_load(edge->total + from);
    if (!first) sent = lanes_sub(sent, answer_of(kept, part->low, part->high));
    if (keep) sent = lanes_bits(lanes_load(keep + from), sent, lanes_all(ONDIE_LDPC_KNOWN));
    lanes_store(queue, sent);
    const lanes magnitude = lanes_abs(sent);
    part->sign = lanes_xor(part->sign, sent);
    part->second = lanes_min(part->second, lanes_max(part->least, magnitude));
    part->least = lanes_min(part->least, magnitude);
}

/* Keep the magnitudes of the answers. */
INLINE void FN(conclude)(ldpc_part *part, uint8_t *answers) {
    const lanes largest = lanes_all(ONDIE_LDPC_LARGEST);
    part->low = lanes_three_quarters(lanes_min(part->least, largest));
    part->high = lanes_three_quarters(lanes_min(part->second, largest));
    lanes_store((int8_t *)answers, part->low);
    lanes_store((int8_t *)answers + MESSAGES, part->high);
}

/* Answer a column. */
INLINE void FN(reply)(const ldpc_part *part, const ldpc_edge *edge, size_t at, size_t size,
                      answer *kept, const int8_t *queue) {
    const size_t from = (at + edge->shift) & (size - 1);
    const lanes sent = lanes_load(queue);
    const lanes message = answer_to(kept, lanes_abs(sent), part->least,
                                    lanes_xor(part->sign, sent), part->low, part->high);
    lanes_store(edge->total + from, lanes_add(sent, message));
}

/* Update the totals and answers of one row of checks. The last edge is that of the last data column;
 * keep: mask of its stored bits. While checks answer, the next ones receive: no bit is in both, and
 * a load need not wait for stores of the vector before it.
 */
INLINE void FN(update_row_in)(const ldpc_edge *edges, size_t count, size_t size, const int8_t *keep,
                              uint8_t *answers, int8_t *queue, int first) {
    const size_t step = FN(answer_bytes)(count), last = count - 1;
    ldpc_part now, next;
    const answer *coming = (const answer *)(const void *)(answers + 2 * MESSAGES);
    FN(begin)(&next, answers, first);
    for (size_t i = 0; i < last; i++)
        FN(receive)(&next, edges + i, 0, size, 0, coming + i, queue + i * MESSAGES, first);
    FN(receive)(&next, edges + last, 0, size, keep, coming + last, queue + last * MESSAGES, first);
    for (size_t at = 0; at < size; at += MESSAGES, answers += step) {
        answer *const kept = (answer *)(void *)(answers + 2 * MESSAGES);
        now = next;
        FN(conclude)(&now, answers);
        if (at + MESSAGES == size) {
            for (size_t i = 0; i < count; i++)
                FN(reply)(&now, edges + i, at, size, kept + i, queue + i * MESSAGES);
            break;
        }
        const size_t then = at + MESSAGES;
        coming = (const answer *)(const void *)(answers + step + 2 * MESSAGES);
        FN(begin)(&next, answers + step, first);
        for (size_t i = 0; i < last; i++) {
            int8_t *const place = queue + i * MESSAGES;
            FN(reply)(&now, edges + i, at, size, kept + i, place);
            FN(receive)(&next, edges + i, then, size, 0, coming + i, place, first);
        }
        FN(reply)(&now, edges + last, at, size, kept + last, queue + last * MESSAGES);
        FN(receive)(&next, edges + last, then, size, keep, coming + last, queue + last * MESSAGES,
                    first);
    }
}

/* Update a row: in the first iteration, which reads no answers, or in a later one. */
static __attribute__((noinline)) void FN(update_row)(const ldpc_edge *edges, size_t count,
                                                     size_t size, const int8_t *keep,
                                                     uint8_t *answers, int8_t *queue, int first) {
    if (first)
        FN(update_row_in)(edges, count, size, keep, answers, queue, 1);
    else
        FN(update_row_in)(edges, count, size, keep, answers, queue, 0);
}

/* Update all rows in turn. first: in the first iteration. */
static void FN(iterate)(const ldpc_work *work, int first) {
    const size_t size = (size_t)work->code->circulant, columns = (size_t)work->code->columns;
    const size_t partial = columns - ROWS - 1;
    for (size_t row = 0; row < ROWS; row++) {
        const int32_t *const shifts = work->code->shifts + row * columns;
        size_t count = 0;
        for (size_t i = 0; i < columns; i++) {
            const size_t c = (i + partial + 1) % columns;
            if (shifts[c] >= 0)
                work->edges[count++] =
                    (ldpc_edge){work->total + c * (size + PAD), (size_t)shifts[c]};
        }
        FN(update_row)(work->edges, count, size, work->keep,
                       work->answers + row * (size / MESSAGES) * FN(answer_bytes)(columns),
                       work->queue, first);
        for (size_t i = 0; i < count; i++) {
            int8_t *const total = work->edges[i].total;
            const lanes ends = lanes_first(work->edges[i].shift % MESSAGES,
                                           lanes_load(total + size), lanes_load(total));
            lanes_store(total, ends);
            lanes_store(total + size, ends);
        }
    }
}

/* Set the bits to the signs of the totals. */
static void FN(decide)(const ldpc_work *work) {
    const size_t size = (size_t)work->code->circulant;
    for (size_t c = 0; c < (size_t)work->code->columns; c++) {
        uint8_t *const bits = work->bits + c * work->stride;
        for (size_t at = 0; at < size; at += MESSAGES)
            lanes_store_signs(bits + at / 8, lanes_load(work->total + c * (size + PAD) + at));
        FN(repeat)(work, bits);
    }
}

/* Set the totals before the first iteration, from the bits or from messages. */
static void FN(start_totals)(const ldpc_work *work, const int8_t *soft) {
    const size_t size = (size_t)work->code->circulant, columns = (size_t)work->code->columns;
    size_t left = (size_t)work->code->stored_bits;
    for (size_t c = 0; c < columns; c++) {
        int8_t *const total = work->total + c * (size + PAD);
        if (c == columns - ROWS) left = ROWS * size;
        const size_t some = left < size ? left : size;
        left -= some;
        if (soft) {
            memcpy(total, soft, some);
            memset(total + some, ONDIE_LDPC_KNOWN, size - some);
            soft += some;
        } else {
            const lanes zero = lanes_all(ONDIE_LDPC_HARD), one = lanes_all(-ONDIE_LDPC_HARD);
            const uint8_t *const bits = work->bits + c * work->stride;
            for (size_t at = 0; at < size; at += MESSAGES)
                lanes_store(total + at, lanes_of_bits(bits + at / 8, zero, one));
        }
        memcpy(total + size, total, PAD);
    }
}

/* Set the bits to the signs of messages. */
static void FN(signs_of)(const ldpc_work *work, const int8_t *soft, uint8_t *word) {
    const size_t bits = (size_t)work->code->word_bytes * 8;
    for (size_t at = 0; at < bits; at += 8) {
        uint8_t byte = 0;
        for (size_t i = 0; i < 8; i++) byte |= (uint8_t)((soft[at + i] < 0) << i);
        word[at / 8] = byte;
    }
}

static void FN(ldpc_decode)(const ondie_ldpc *code, const uint8_t *words, const int8_t *soft,
                            int iterations, int flips, uint8_t *corrected,
                            ondie_ldpc_result *results, size_t count, uint8_t *memory) {
    ldpc_work work;
    FN(ldpc_prepare)(&work, code, memory);
    const size_t size = (size_t)code->word_bytes, data = (size_t)code->stored_bits / 8 - 4;
    const int few = ROWS * code->circulant / ONDIE_LDPC_FEW;
    for (size_t w = 0; w < count; w++, corrected += size, results++) {
        const int8_t *const input = soft ? soft + w * size * 8 : 0;
        if (soft)
            FN(signs_of)(&work, input, work.read);
        else
            memcpy(work.read, words + w * size, size);
        FN(columns_of)(&work, work.read, code->columns);
        *results = (ondie_ldpc_result){0, 0, ONDIE_LDPC_FAILED};
        for (;;) {
            const int failed = FN(failed_checks)(&work);
            const int most = results->iterations && flips > ONDIE_LDPC_AFTER ? ONDIE_LDPC_AFTER : flips;
            if (failed == 0 ||
                (failed <= few && FN(flip_bits)(&work, failed, most, &results->flips))) {
                results->outcome = ONDIE_LDPC_CORRECT;
                break;
            }
            if (results->iterations == iterations) break;
            if (results->iterations++ == 0) {
                FN(columns_of)(&work, work.read, code->columns);
                FN(start_totals)(&work, input);
            }
            FN(iterate)(&work, results->iterations == 1);
            FN(decide)(&work);
        }
        FN(word_of)(&work, corrected);
        uint32_t crc;
        memcpy(&crc, corrected + data, sizeof crc);
        if (results->outcome == ONDIE_LDPC_CORRECT && crc != ondie_crc32c(CRC_ISA, 0, corrected, data))
            results->outcome = ONDIE_LDPC_WRONG_CRC;
    }
}
