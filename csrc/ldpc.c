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

/* Checks of a row, as many as a vector has lanes: the magnitudes that they have answered with, and
 * what they receive.
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

/* Set the edges of a row, the last data column last. Return their number. */
static size_t FN(set_edges)(const ldpc_work *work, size_t row) {
    const size_t size = (size_t)work->code->circulant, columns = (size_t)work->code->columns;
    const int32_t *const shifts = work->code->shifts + row * columns;
    size_t count = 0;
    for (size_t i = 0; i < columns; i++) {
        const size_t c = i + columns - ROWS < columns ? i + columns - ROWS : i - ROWS;
        if (shifts[c] >= 0)
            work->edges[count++] =
                (ldpc_edge){work->total + c * (size + PAD), (size_t)shifts[c], c};
    }
    return count;
}

/* Where the answers of a row begin. */
INLINE uint8_t *FN(answers_of)(const ldpc_work *work, size_t row) {
    const size_t vectors = (size_t)work->code->circulant / MESSAGES;
    return work->answers + row * vectors * FN(answer_bytes)((size_t)work->code->columns);
}

/* Update the rows from `row` on in turn. first: in the first iteration. */
static void FN(iterate)(const ldpc_work *work, size_t row, int first) {
    const size_t size = (size_t)work->code->circulant;
    for (; row < ROWS; row++) {
        const size_t count = FN(set_edges)(work, row);
        FN(update_row)(work->edges, count, size, work->keep, FN(answers_of)(work, row), work->queue,
                       first);
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

/* Set the totals of a column from its bits, and from bits that say where they are small. */
INLINE void FN(set_totals)(const ldpc_work *work, size_t c, const uint8_t *small, int8_t large,
                           int8_t least) {
    const size_t size = (size_t)work->code->circulant;
    int8_t *const total = work->total + c * (size + PAD);
    const uint8_t *const bits = work->bits + c * work->stride;
    for (size_t at = 0; at < size; at += MESSAGES) {
        const uint8_t *const here = small + at / 8;
        const lanes zero = lanes_of_bits(here, lanes_all(large), lanes_all(least));
        const lanes one = lanes_of_bits(here, lanes_all(-large), lanes_all(-least));
        lanes_store(total + at, lanes_of_bits(bits + at / 8, zero, one));
    }
    memcpy(total + size, total, PAD);
}

/* Make row 0 of the first iteration with hard input. The checks are known, and the code has two data
 * columns or more: every check receives HARD or -HARD from two bits or more, and its answers are 3/4
 * of that. Totals are the sum where it is satisfied, else the difference. Those of bits that are not
 * stored are read by nobody, except that they must be positive.
 */
static __attribute__((noinline)) void FN(start_hard)(const ldpc_work *work) {
    enum { ANSWER = 3 * ONDIE_LDPC_HARD / 4 };
    const size_t size = (size_t)work->code->circulant, columns = (size_t)work->code->columns;
    const size_t count = FN(set_edges)(work, 0), step = FN(answer_bytes)(count);
    uint8_t *const answers = FN(answers_of)(work, 0);
    uint8_t *const negative = work->turned; /* answers of a column */
    uint8_t *const failed = negative + work->stride; /* checks by bit of a column */
    for (size_t at = 0, v = 0; at < size; at += MESSAGES, v++)
        for (int i = 0; i < 2; i++)
            lanes_store((int8_t *)answers + v * step + i * MESSAGES, lanes_all(ANSWER));
    for (size_t i = 0; i < count; i++) {
        const size_t c = work->edges[i].column, shift = work->edges[i].shift;
        const uint32_t back = (uint32_t)((size - shift) % size);
        for (size_t at = 0; at < work->bytes; at += BLOCK) {
            const uint8_t *const bits = work->bits + c * work->stride + at;
            const uint8_t *const checks = work->checks + at;
            FN(write_block)(work, negative, at,
                            FN(turned)(bits, (uint32_t)shift) ^ FN(bits_load)(checks));
            FN(write_block)(work, failed, at, FN(turned)(checks, back));
        }
        answer *kept = (answer *)(void *)(answers + 2 * MESSAGES) + i;
        for (size_t at = 0; at < work->bytes; at += MESSAGES / 8) {
            answer_equal(kept, negative + at, ANSWER);
            kept = (answer *)(void *)((uint8_t *)kept + step);
        }
        FN(set_totals)(work, c, failed, ONDIE_LDPC_HARD + ANSWER, ONDIE_LDPC_HARD - ANSWER);
    }
    memset(failed, 0, work->bytes);
    for (size_t c = 0; c < columns; c++)
        if (work->code->shifts[c] < 0)
            FN(set_totals)(work, c, failed, ONDIE_LDPC_HARD, ONDIE_LDPC_HARD);
}

/* Set the totals before the first iteration, from the bits or from messages. */
static void FN(start_totals)(const ldpc_work *work, const int8_t *soft) {
    const size_t size = (size_t)work->code->circulant, columns = (size_t)work->code->columns;
    size_t left = (size_t)work->code->stored_bits;
    if (!soft) memset(work->turned, 0, work->bytes);
    for (size_t c = 0; c < columns; c++) {
        if (!soft) {
            FN(set_totals)(work, c, work->turned, ONDIE_LDPC_HARD, ONDIE_LDPC_HARD);
            continue;
        }
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
    FN(columns_of)(work, work->read, work->code->columns);
    const int known = !soft && work->code->columns >= ROWS + 2;
    if (known) {
        if (!checked) FN(failed_checks)(work);
        FN(start_hard)(work);
    } else
        FN(start_totals)(work, soft);
    FN(iterate)(work, known, 1);
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
                FN(iterate)(&work, 0, 0);
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
