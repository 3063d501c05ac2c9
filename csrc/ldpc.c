/* Quasi-cyclic LDPC code: layered min-sum, and decoding of words.
 *
 * This file owns the messages of ondie_ldpc in ondie.h and the order of decoding. It does not own
 * checks, encoding and bit flipping (ldpc_bits.h), or the choice of the matrix (kernels/ldpc.py).
 * Source: the papers that kernels/ldpc.py names, which also has the definition.
 *
 * Totals of a column are followed by a copy of those of one vector.
 */
#include "isa.h"

typedef uint64_t ldpc_bits __attribute__((vector_size(64))); /* 512 bits of a column */

#ifdef ONDIE_LDPC_WIDE
#include ONDIE_LDPC_WIDE
enum { CRC_ISA = ONDIE_AVX2 }; /* of all that are wider */
#else
#include "ldpc_base.h"
enum { CRC_ISA = ONDIE_BASE };
#endif
#include "ldpc_bits.h"

/* What checks have answered before: nothing yet, ONDIE_LDPC_FIRST everywhere, or what is kept. */
enum { NOTHING, EQUAL, KEPT };

/* Checks of a row, as many as a vector has lanes: what they receive, and their answers to bits of
 * the least magnitude and to others, for positive messages.
 */
typedef struct {
    lanes low, high, least, second, sign;
} ldpc_part;

/* Begin to receive. */
INLINE void FN(begin)(ldpc_part *part) {
    part->least = part->second = lanes_all(127);
    part->sign = lanes_all(0);
}

/* Receive what a column sends from `from` on, and queue it. keep: mask of its stored bits, null if
 * all are; negative: where equal answers were.
 */
INLINE void FN(receive)(ldpc_part *part, const int8_t *total, size_t from, const int8_t *keep,
                        int answered, const int8_t *answers, const uint8_t *negative,
                        int8_t *queue) {
    lanes sent = lanes_load(total + from);
    if (answered != KEPT) __builtin_prefetch(answers, 1); /* they are written soon */
    if (answered == KEPT) sent = lanes_sub(sent, lanes_load(answers));
    if (answered == EQUAL)
        sent = lanes_sub(sent, lanes_of_bits(negative, lanes_all(ONDIE_LDPC_FIRST),
                                             lanes_all(-ONDIE_LDPC_FIRST)));
    if (keep) sent = lanes_bits(lanes_load(keep + from), sent, lanes_all(ONDIE_LDPC_KNOWN));
    const lanes magnitude = lanes_abs(sent);
    lanes_store(queue, sent);

    part->sign = lanes_xor(part->sign, sent);
    part->second = lanes_min(part->second, lanes_max(part->least, magnitude));
    part->least = lanes_min(part->least, magnitude);
}

/* Decide on the answers. */
INLINE void FN(conclude)(ldpc_part *part) {
    const lanes largest = lanes_all(ONDIE_LDPC_LARGEST);
    part->low = lanes_three_quarters(lanes_min(part->least, largest));
    part->high = lanes_three_quarters(lanes_min(part->second, largest));
    part->low = lanes_signed(part->low, part->sign);
    part->high = lanes_signed(part->high, part->sign);
}

/* Answer a column, and keep it. */
INLINE void FN(reply)(const ldpc_part *part, int8_t *total, int8_t *answers, const int8_t *queue) {
    const lanes sent = lanes_load(queue), magnitude = lanes_abs(sent);
    const lanes found = lanes_equal(magnitude, part->least, part->high, part->low);
    const lanes answer = lanes_signed(found, sent);
    lanes_store(answers, answer);
    lanes_store(total, lanes_add(sent, answer));
}

/* Update the totals and answers of one row of checks. The last edge is that of the last data column;
 * keep: mask of its stored bits. While checks answer, the next ones receive: no bit is in both, and
 * a load need not wait for stores of the vector before it.
 */
INLINE void FN(update_row_in)(const ldpc_edge *edges, size_t count, size_t size, const int8_t *keep,
                              int8_t *answers, int8_t *queue, int answered) {
    const size_t last = count - 1, mask = size - 1;
    ldpc_part now, next;
    FN(begin)(&next);
    for (size_t i = 0; i < count; i++)
        FN(receive)(&next, edges[i].total, edges[i].shift, i == last ? keep : 0, answered,
                    answers + i * MESSAGES, edges[i].negative, queue + i * MESSAGES);
    for (size_t at = 0; at < size; at += MESSAGES) {
        int8_t *const coming = answers + count * MESSAGES;
        const size_t then = at + MESSAGES;
        now = next;
        FN(conclude)(&now);
        if (then == size) {
            for (size_t i = 0; i < count; i++)
                FN(reply)(&now, edges[i].total + ((at + edges[i].shift) & mask),
                          answers + i * MESSAGES, queue + i * MESSAGES);
            break;
        }
        FN(begin)(&next);
#pragma GCC unroll 2
        for (size_t i = 0; i < last; i++) {
            int8_t *const total = edges[i].total, *const place = queue + i * MESSAGES;
            const uint8_t *const negative = edges[i].negative + then / 8;
            const size_t from = (at + edges[i].shift) & mask, to = (from + MESSAGES) & mask;
            FN(reply)(&now, total + from, answers + i * MESSAGES, place);
            FN(receive)(&next, total, to, 0, answered, coming + i * MESSAGES, negative, place);
        }
        int8_t *const total = edges[last].total, *const place = queue + last * MESSAGES;
        const uint8_t *const negative = edges[last].negative + then / 8;
        const size_t from = (at + edges[last].shift) & mask, to = (from + MESSAGES) & mask;
        FN(reply)(&now, total + from, answers + last * MESSAGES, place);
        FN(receive)(&next, total, to, keep, answered, coming + last * MESSAGES, negative, place);
        answers = coming;
    }
}

/* Update a row. */
static __attribute__((noinline)) void FN(update_row)(const ldpc_edge *edges, size_t count,
                                                     size_t size, const int8_t *keep,
                                                     int8_t *answers, int8_t *queue, int answered) {
    if (answered == NOTHING)
        FN(update_row_in)(edges, count, size, keep, answers, queue, NOTHING);
    else if (answered == EQUAL)
        FN(update_row_in)(edges, count, size, keep, answers, queue, EQUAL);
    else
        FN(update_row_in)(edges, count, size, keep, answers, queue, KEPT);
}

/* Set the edges of a row, the last data column last. Return their number. */
static size_t FN(set_edges)(const ldpc_work *work, size_t row) {
    const size_t size = (size_t)work->code->circulant, columns = (size_t)work->code->columns;
    const int32_t *const shifts = work->code->shifts + row * columns;
    uint8_t *negative = work->negative + row * columns * ldpc_padded(work->bytes);
    size_t count = 0;
    for (size_t i = 0; i < columns; i++) {
        const size_t c = i + columns - ROWS < columns ? i + columns - ROWS : i - ROWS;
        if (shifts[c] < 0) continue;
        work->edges[count++] =
            (ldpc_edge){work->total + c * (size + PAD), negative, (size_t)shifts[c], c};
        negative += ldpc_padded(work->bytes);
    }
    return count;
}

/* Update the rows in turn. */
static void FN(iterate)(const ldpc_work *work, int answered) {
    const size_t size = (size_t)work->code->circulant, columns = (size_t)work->code->columns;
    for (size_t row = 0; row < ROWS; row++) {
        const size_t count = FN(set_edges)(work, row);
        FN(update_row)(work->edges, count, size, work->keep, work->answers + row * columns * size,
                       work->queue, answered);
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

/* Write where a row answers with less than 0 in the first iteration with hard input. */
INLINE void FN(first_answers)(const ldpc_work *work, size_t row) {
    const uint8_t *const checks = work->checks + row * work->stride;
    const size_t count = FN(set_edges)(work, row);
    for (size_t i = 0; i < count; i++) {
        const uint8_t *const bits = work->bits + work->edges[i].column * work->stride;
        for (size_t at = 0; at < work->bytes; at += BLOCK) {
            const ldpc_bits negative = FN(turned)(bits + at, (uint32_t)work->edges[i].shift) ^
                                       FN(bits_load)(checks + at);
            memcpy(work->edges[i].negative + at, &negative, BLOCK);
        }
    }
}

/* Set the totals of a column from its bits and from how many of their checks fail. */
INLINE void FN(first_totals)(const ldpc_work *work, size_t c, const int8_t *keep) {
    enum { FIRST = ONDIE_LDPC_FIRST };
    const size_t size = (size_t)work->code->circulant;
    const size_t block = work->bytes < BLOCK ? work->bytes : BLOCK;
    const uint8_t *const bits = work->bits + c * work->stride, *from[ROWS];
    int8_t *total = work->total + c * (size + PAD);
    const int weight = FN(checks_of)(work, c, from);
    const lanes all = lanes_all((int8_t)(ONDIE_LDPC_HARD + weight * FIRST));
    for (size_t at = 0; at < work->bytes; at += BLOCK) {
        ldpc_bits sum[3] = {{0}, {0}, {0}};
        uint8_t digits[3][BLOCK];
        for (int i = 0; i < weight; i++) {
            const ldpc_bits one = FN(bits_load)(from[i] + at), two = sum[0] & one;
            sum[2] |= sum[1] & two;
            sum[1] ^= two;
            sum[0] ^= one;
        }
        memcpy(digits, sum, sizeof sum);
        for (size_t k = 0; k < block; k += MESSAGES / 8, total += MESSAGES) {
            lanes found = all;
            for (int i = 0; i < 3; i++)
                found = lanes_sub_where(digits[i] + k, found, lanes_all((int8_t)(FIRST << (i + 1))));
            found = lanes_signed_by(bits + at + k, found);
            if (keep) {
                found = lanes_bits(lanes_load(keep), found, lanes_all(ONDIE_LDPC_KNOWN));
                keep += MESSAGES;
            }
            lanes_store(total, found);
        }
    }
    total = work->total + c * (size + PAD);
    memcpy(total + size, total, PAD);
}

/* Make the first iteration with hard input. The checks are known. */
static __attribute__((noinline)) void FN(start_hard)(const ldpc_work *work) {
    const size_t columns = (size_t)work->code->columns;
    for (size_t row = 0; row < ROWS; row++) FN(first_answers)(work, row);
    FN(turn_checks)(work);
    for (size_t c = 0; c < columns; c++)
        FN(first_totals)(work, c, c + 1 == columns - ROWS ? work->keep : 0);
}

/* Set the totals to messages. */
static void FN(start_totals)(const ldpc_work *work, const int8_t *soft) {
    const size_t size = (size_t)work->code->circulant, columns = (size_t)work->code->columns;
    size_t left = (size_t)work->code->stored_bits;
    for (size_t c = 0; c < columns; c++) {
        int8_t *const total = work->total + c * (size + PAD);
        if (c == columns - ROWS) left = ROWS * size;
        const size_t some = left < size ? left : size;
        left -= some;
        memcpy(total, soft, some);
        memset(total + some, ONDIE_LDPC_KNOWN, size - some);
        soft += some;
        memcpy(total + size, total, PAD);
    }
}

/* Make the first iteration. checked: the checks are those of the word. */
static void FN(begin_min_sum)(const ldpc_work *work, const int8_t *soft, int checked) {
    if (soft) {
        FN(start_totals)(work, soft);
        FN(iterate)(work, NOTHING);
        return;
    }
    if (!checked) {
        FN(columns_of)(work, work->read, work->code->columns);
        FN(failed_checks)(work);
    }
    FN(start_hard)(work);
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
            const int after = flips < ONDIE_LDPC_AFTER ? flips : ONDIE_LDPC_AFTER;
            const int most = results->iterations ? after : flips;
            if (failed == 0 ||
                (failed <= few && FN(flip_bits)(&work, failed, most, &results->flips))) {
                results->outcome = ONDIE_LDPC_CORRECT;
                break;
            }
            if (results->iterations == iterations) break;
            if (results->iterations++ == 0)
                FN(begin_min_sum)(&work, input, results->flips == 0);
            else
                FN(iterate)(&work, soft || results->iterations > 2 ? KEPT : EQUAL);
            FN(decide)(&work);
        }
        FN(word_of)(&work, corrected);
        uint32_t crc;
        memcpy(&crc, corrected + data, sizeof crc);
        if (results->outcome == ONDIE_LDPC_CORRECT &&
            crc != ondie_crc32c(CRC_ISA, 0, corrected, data))
            results->outcome = ONDIE_LDPC_WRONG_CRC;
    }
}
