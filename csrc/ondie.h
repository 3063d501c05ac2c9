/* The complete C interface of ondie. cffi parses this file, so it contains plain declarations only.
 *
 * Arrays are flat, aligned to the element (64 bytes is fastest) and of any length including 0. The
 * arrays of one part must not overlap. The library keeps no state between calls except idle
 * threads, so any number of threads may call it on disjoint arrays. One call at a time uses the
 * idle threads; concurrent calls run without them. Results do not depend on the number of threads.
 *
 * Arithmetic: every operation is rounded separately to FP32 in the order written, with IEEE square
 * root and division. There is no contraction, no reassociation and no flushing of denormals, so
 * every instruction set gives the same bits. A fused multiply-add that belongs to a definition is
 * written fma(a, b, c) = a * b + c rounded once.
 *
 * isa: the compiled object that runs. The caller chooses it; the library never overrides it.
 */
#ifndef ONDIE_H
#define ONDIE_H

#include <stddef.h>
#include <stdint.h>

enum ondie_isa {
    ONDIE_BASE = 0,   /* supported by every processor of the architecture: SSE2, NEON */
    ONDIE_AVX2 = 1,   /* AVX2, FMA and F16C, 256-bit vectors */
    ONDIE_AVX512 = 2, /* AVX-512 F, BW, DQ, VL, 512-bit vectors */
    ONDIE_ISAS = 3
};

enum ondie_status {
    ONDIE_OK = 0,
    ONDIE_NO_ISA = -1,    /* isa is not compiled in, or this processor lacks it */
    ONDIE_NO_UPDATE = -2, /* unknown operation or variant, or an unsupported combination */
    ONDIE_OVERLAP = -3    /* two arrays of a part share memory */
};

enum ondie_size {
    ONDIE_GRAIN = 4096,      /* elements of one part that are processed by one thread */
    ONDIE_LEAST = 16384,     /* minimum number of parameters per thread */
    ONDIE_THREADS = 1024,    /* maximum number of threads; larger values are clamped */
    ONDIE_NORM_BLOCK = 4096, /* elements summed into one partial result */
    ONDIE_NORM_LANES = 32,   /* accumulators within a block */
    ONDIE_CODE_BLOCK = 256,  /* elements that share a scale in 8-bit states */
    ONDIE_CODE_BUCKETS = 3073,
    ONDIE_CODE_FRACTION = 15,
    ONDIE_CODE_UNSURE = 4 /* upper bound of the error of a place, times 2^ONDIE_CODE_FRACTION */
};

/* Return 1 if code for this instruction set is compiled in and this processor runs it, else 0. */
int ondie_isa_runs(int isa);

/* --- updates ---
 *
 * mad(a, b, c) is a * b + c. The canonical variant rounds it after each operation; the torch
 * variant rounds it once, as fma. Scalars are folded in double precision and rounded once to FP32.
 * s is +1, or -1 to maximize the objective. The first line with l2 is skipped if l2 = 0. t is the
 * step.
 *
 * ONDIE_SGD.  coef: 0 lr (s lr)  1 l2 (s weight_decay)
 *     g = mad(w, l2, g)
 *     w = mad(g, -lr, w)
 *
 * ONDIE_MOMENTUM, state m.  coef: 0 lr  1 l2 (s weight_decay)  2 mu (momentum)
 *                                 3 c1 (s (1 - dampening))
 * In the first step mu = -0 and c1 = s, so the buffer becomes the gradient and signed zeros are
 * kept.
 *     g = mad(w, l2, g)
 *     m = mad(c1, g, mu m)
 *     w = mad(m, -lr, w)
 *
 * ONDIE_NESTEROV, state m.  coef: 0 lr (s lr)  1 l2  2 mu  3 c1 (as above)  4 look (s momentum)
 *     g = mad(w, l2, g)
 *     m = mad(c1, g, mu m)
 *     w = mad(mad(m, look, g), -lr, w)
 *
 * ONDIE_ADAGRAD, state v.  coef: 0 lr (s lr / (1 + (t - 1) lr_decay))  1 l2 (s weight_decay)  2 eps
 *     g = mad(w, l2, g)
 *     v = mad(g, g, v)
 *     w = w - (lr g) / (sqrt(v) + eps)
 *
 * ONDIE_ADAM, states m and v: Adam (decay = 1) and AdamW (l2 = 0).
 * coef: 0 beta1  1 c1  2 beta2  3 c2  4 eps  5 l2  6 decay  7 step  8 root  9 sign
 * canonical: c1 = s (1 - beta1), l2 = s weight_decay, root = 1 / sqrt(1 - beta2^t),
 *            step = lr / (1 - beta1^t)
 *     g = g + l2 w
 *     m = beta1 m + c1 g
 *     v = beta2 v + (c2 g) g
 *     w = decay w - step (m / (sqrt(v) root + eps))
 * torch: c1 = 1 - beta1, l2 = weight_decay, root = sqrt(1 - beta2^t), step = -lr / (1 - beta1^t),
 *        sign = s
 *     g = sign g;  g = fma(w, l2, g)
 *     m = fma(g - m, c1, m)           (c1 < 1/2; else m = fma(m - g, 1 - c1, g))
 *     v = fma(c2 g, g, beta2 v)
 *     w = decay w + (step m) / (sqrt(v) / root + eps)
 *
 * ONDIE_DIE_ADAM, states m and v, and ONDIE_DIE_ADAGRAD, state v: arithmetic of a processing
 * element on the die, FP32, canonical variant only. isqrt(x) starts with y, the float whose bits
 * are 0x5f3759df - (bits of x >> 1), and applies y = y (1.5 - ((x / 2) y) y) `newton` times.
 * coef of Adam: 0 beta1  1 c1  2 beta2  3 c2  4 newton  5 l2  6 decay
 *               7 step (-lr root / (1 - beta1^t) with root = sqrt(1 - beta2^t))
 * coef of AdaGrad: 0 lr (-s lr ...)  1 l2  2 newton
 *     g = l2 w + g                     LVS
 *     m = beta1 m + c1 g               LVS
 *     v = beta2 v + (c2 g) g           QVS     (AdaGrad: v = v + g g)
 *     u = isqrt(v)                     ISQRT
 *     u = m u                          VMUL    (AdaGrad: u = g u)
 *     w = decay w + step u             LVS     (AdaGrad: w = w + lr u)
 */
enum ondie_op {
    ONDIE_SGD = 0,
    ONDIE_MOMENTUM = 1,
    ONDIE_NESTEROV = 2,
    ONDIE_ADAM = 3,
    ONDIE_ADAGRAD = 4,
    ONDIE_DIE_ADAM = 5,
    ONDIE_DIE_ADAGRAD = 6,
    ONDIE_OPS = 7
};

/* Storage of the arrays. The arithmetic is the canonical form, except for ONDIE_TORCH. Narrow
 * results are rounded to nearest even. ONDIE_BF16_STOCHASTIC rounds at random instead: it adds 16
 * bits of a hash of the element's number and the key to the 16 discarded bits and truncates the
 * sum.
 */
enum ondie_variant {
    ONDIE_CANONICAL = 0,
    ONDIE_TORCH = 1,           /* order of operations of PyTorch's fused CPU optimizers */
    ONDIE_FP16 = 2,            /* g in FP16; w and states in FP32; out receives w as FP16 */
    ONDIE_BF16 = 3,            /* g in BF16; w and states in FP32; out receives w as BF16 */
    ONDIE_BF16_ALL = 4,        /* w, g and states in BF16 */
    ONDIE_BF16_STOCHASTIC = 5, /* w, g and states in BF16; w and states rounded at random */
    ONDIE_CODES = 6,           /* w and g in FP32; states in 8 bits with a scale per block */
    ONDIE_VARIANTS = 7
};

/* The arrays of n parameters; unused pointers are null. a and b: the states, in order. first:
 * number of the first element, for ONDIE_BF16_STOCHASTIC. scale_a, scale_b: FP32, one scale for
 * each ONDIE_CODE_BLOCK elements. Each part begins with a new block.
 */
typedef struct {
    void *w;
    void *g;
    void *a;
    void *b;
    void *out;
    float *scale_a;
    float *scale_b;
    uint64_t n;
    uint64_t first;
} ondie_part;

/* A map from 8-bit codes to numbers. value[c] increases with c, up to 1. zero: the code of the
 * smallest magnitude.
 *
 * Encoding by table. Numbers whose magnitudes have the same upper 16 bits share a bucket. The index
 * of a bucket is these bits minus those of 2^-24, at least 0; negative numbers use the second
 * ONDIE_CODE_BUCKETS entries. Within a bucket the nearest code changes at most once, by one. It is
 * bucket >> 17 while the lower 16 bits are below bucket & 0x1ffff. From there on it is one more
 * (negative numbers: one less).
 *
 * Decoding by arithmetic. The place of code c is |c - base|. Its number is 0 at place 0, else
 * fma(place, line[0][k], line[1][k]) with the sign of c - base. k is the lower 4 bits of the
 * place's FP32 exponent.
 *
 * Encoding by arithmetic. A magnitude y lies in least .. 1. k is the lower 4 bits of half its FP32
 * exponent, plus one if y > limit[k]. The place is min(y to_line[0][k] + to_line[1][k],
 * to_line[2][k]), a number from 2^23 on with ONDIE_CODE_FRACTION bits after the binary point, which
 * are truncated. FP32 does not decide the place if these bits, before the minimum is taken, are
 * below 2 ONDIE_CODE_UNSURE. In an unsigned map the place is the code. In a signed map places are
 * counted from `zero`; those of negative numbers are at most 127.
 */
typedef struct {
    float value[256];
    int32_t bucket[6146];
    int32_t zero;
    int32_t base;
    float line[2][16];
    float limit[16];
    float to_line[3][16];
    float least;
} ondie_codes;

/* Arguments of an update of `count` parts that stay the same in every step. codes: the signed and
 * the unsigned map, for ONDIE_CODES. threads: maximum number of threads; at most one thread runs
 * for each ONDIE_LEAST parameters. A part is divided only if it is the only one.
 */
typedef struct {
    int32_t isa;
    int32_t op;
    int32_t variant;
    int32_t threads;
    const ondie_part *parts;
    size_t count;
    const float *coef;
    const ondie_codes *codes;
} ondie_call;

/* Update the parts; each thread updates its parts in order and prefetches the next part meanwhile.
 * key: key of the step, for ONDIE_BF16_STOCHASTIC.
 */
int ondie_update(const ondie_call *call, uint32_t key);

/* Update one part, whose members are passed as arguments. */
int ondie_update_one(int isa, int op, int variant, int threads, void *w, void *g, void *a, void *b,
                     void *out, void *scale_a, void *scale_b, size_t n, uint64_t first,
                     const float *coef, const ondie_codes *codes, uint32_t key);

/* --- gradients --- */

/* g = g * factor. */
int ondie_scale(int isa, float *g, size_t n, float factor);

/* g = g * factor; *found_inf = 1 if any g was infinite or NaN before, else 0. */
int ondie_unscale(int isa, float *g, size_t n, float factor, int32_t *found_inf);

/* partial[b] = sum of squares of block b, in FP64, for ceil(n / ONDIE_NORM_BLOCK) blocks.
 * Element i of a block is added to lane i % ONDIE_NORM_LANES. The lanes are then added pairwise
 * (lane j += lane j + 16, 8, 4, 2, 1). The square of an FP32 number is exact in FP64.
 */
int ondie_squares(int isa, const float *g, size_t n, double *partial);

/* Casts, rounded to nearest even; denormals are kept, and a NaN stays a quiet NaN. */
int ondie_to_fp16(int isa, const float *x, uint16_t *y, size_t n);
int ondie_to_bf16(int isa, const float *x, uint16_t *y, size_t n);
int ondie_from_fp16(int isa, const uint16_t *x, float *y, size_t n);
int ondie_from_bf16(int isa, const uint16_t *x, float *y, size_t n);

/* sum = sum + x, where x is FP32, FP16 or BF16. kind: ONDIE_CANONICAL, ONDIE_FP16 or ONDIE_BF16. */
int ondie_accumulate(int isa, int kind, float *sum, const void *x, size_t n);

/* Write indices (increasing) and values of the k largest magnitudes of n numbers, with
 * 0 < k <= n < 2^32. Equal magnitudes are selected by lower index. count: work array of 2^16
 * numbers.
 */
void ondie_top_k(const float *g, size_t n, size_t k, uint32_t *index, float *value,
                 uint32_t *count);

/* Memory limit, for benchmarks only: the traffic of an update (28, 20 and 12 bytes per parameter)
 * with one addition and one multiplication for each array written, x = (x + g) / 2.
 */
int ondie_limit28(int isa, int threads, float *w, const float *g, float *m, float *v, size_t n);
int ondie_limit20(int isa, int threads, float *w, const float *g, float *m, size_t n);
int ondie_limit12(int isa, int threads, float *w, const float *g, size_t n);
/* Memory limit for arrays w, g, a, b and out with bytes[i] bytes per parameter, in this order, of
 * any type. w, a and b are read and written, g is read, and out is written. The written arrays
 * contain meaningless numbers afterwards.
 */
int ondie_limit(int isa, int threads, const ondie_part *part, const int32_t *bytes);

/* --- bytes of a drive --- */

/* CRC-32C of n bytes that follow others with checksum `crc` (0: none). */
uint32_t ondie_crc32c(int isa, uint32_t crc, const uint8_t *data, size_t n);

/* --- BCH codes ---
 *
 * A code word is a polynomial over GF(2): bit i of byte j is the coefficient of x^(8 j + i). From
 * the lowest power: parity_bytes of parity, 4 bytes with the CRC-32C of the data (with `crc`), and
 * data_bytes of data. The first two are the check bytes. A word is a multiple of the generator g,
 * which has the roots a^1 to a^(2 t); a is a root of the primitive polynomial of degree m.
 */
enum {
    ONDIE_BCH_T = 100,
    ONDIE_BCH_UNCORRECTABLE = -1, /* more than t wrong bits */
    ONDIE_BCH_MISCORRECTED = -2,  /* a word of the code, but the CRC is that of other data */
    ONDIE_BCH_PLAIN = 0,          /* any processor */
    ONDIE_BCH_CLMUL = 1,          /* AVX2 and PCLMULQDQ */
    ONDIE_BCH_GFNI = 2            /* AVX-512 F, BW, DQ, VL with GFNI and VPCLMULQDQ */
};

/* A code and its tables (kernels/bch_code.py). Each form of the functions needs only some of them. */
typedef struct {
    int32_t m, t, n, degree;   /* n = 2^m - 1; degree of g */
    int32_t data_bytes, parity_bytes, crc;
    int32_t words;             /* of 64 bits in a remainder */
    int32_t groups, group;     /* columns of `dot`: groups of so many, at least `words` */
    int32_t blocks;            /* of 64 bytes of data, then CRC */
    int32_t lanes;             /* t, rounded up to a multiple of 32 */
    int32_t span, spans;       /* positions in `powers`; how many of these cover a word */
    const uint64_t *dot;       /* [groups][blocks][group][8]: x^(64 i) times the place, mod g */
    const uint64_t *generator; /* [words]: g without its highest power */
    uint64_t inverse;          /* x^(degree + 64) / g without its highest power */
    const uint32_t *rows;      /* [4][256][words of 32 bits]: plain division by g */
    const uint16_t *syndromes; /* [4-bit digits of a remainder][16][lanes]: at a^1, a^3, ... */
    const uint16_t *exp;       /* [2 n]: powers of a */
    const uint16_t *log;       /* [n + 1] */
    const uint8_t *powers;     /* of a^(-j i) for odd j: both bytes, [(t + 1) / 2][2][span], or the
                                  m bits, [(t + 1) / 2][m][span / 8] (plain form) */
    const uint8_t *maps; /* [7][4][16][bytes of a map]: y -> c y^(2^k) by digits of c, per form */
} ondie_bch;

/* Return the form, enum ONDIE_BCH_*, in which an instruction set runs on this processor. */
int ondie_bch_form(int isa);

/* Write the check bytes of `count` words. Arrays: [count][data_bytes] and [count][check bytes]. */
void ondie_bch_encode(int form, const ondie_bch *code, const uint8_t *data, uint8_t *check,
                      size_t count);

/* clean[i] = 1 if word i is a word of the code; with `verify`, its CRC must also be right. */
void ondie_bch_check(int form, const ondie_bch *code, const uint8_t *data, const uint8_t *check,
                     size_t count, int verify, uint8_t *clean);

/* Correct words in place. result[i]: number of corrected bits, or why word i is left as it was. */
void ondie_bch_decode(int form, const ondie_bch *code, uint8_t *data, uint8_t *check, size_t count,
                      int verify, int32_t *result);

/* State of the cells of a page. */
enum ondie_written {
    ONDIE_ERASED = 0, /* also what a hole of a file reads as */
    ONDIE_PROGRAMMED = 0x50a35ac6,
    ONDIE_TORN = 0x2f5ca539 /* a program has begun and not ended */
};

/* Out-of-band data of a page: dtype OOB of nand/page_store.py. */
typedef struct {
    int64_t lpn;       /* logical page, or super-page of the reservoir */
    int64_t sequence;  /* number of the program that wrote the data first */
    int64_t step;      /* optimizer step (reservoir) */
    uint32_t slot;     /* plane within the super-page (reservoir) */
    uint32_t checksum; /* of the page's bytes */
    uint32_t seal;     /* of this record */
    uint32_t written;  /* enum ondie_written; not stored in the cells */
    int64_t sectors;   /* bit mask of the sectors that hold data */
    uint32_t stream;   /* stream that fills the block */
    uint32_t erases;   /* erase count of the block */
} ondie_spare;

/* Return the seal of out-of-band data: a CRC-32C of all fields but seal and written. */
uint32_t ondie_seal(int isa, const ondie_spare *spare);

/* Seal `count` records of out-of-band data. */
void ondie_seal_spares(int isa, ondie_spare *spares, int64_t count);

/* What `count` records of out-of-band data read as: 0 blank, 1 valid, 2 neither. */
void ondie_read_spares(int isa, const ondie_spare *spares, int64_t count, uint8_t *found);

/* Kinds of records of the log that this library applies (engine/core/payload_log.py). */
enum ondie_log {
    ONDIE_LOG_READ = 0,
    ONDIE_LOG_PROGRAM = 1,
    ONDIE_LOG_MOVE = 2,
    ONDIE_LOG_ERASE = 3,
    ONDIE_LOG_TRIM = 9,
    ONDIE_LOG_ZERO = 10,
    ONDIE_LOG_STORE = 13,
    ONDIE_LOG_SERVE = 14,
    ONDIE_LOG_DESTAGE = 15,
    ONDIE_LOG_LAND = 16,
    ONDIE_LOG_LOST = 17,
    ONDIE_LOG_FILL = 18,
    ONDIE_LOG_DROP = 19,
    ONDIE_LOG_PADDING = 26,
    ONDIE_LOG_FAILED = 27,
    ONDIE_LOG_TRIM_COPY = 28,
    ONDIE_LOG_TRIM_MAP = 29,
    ONDIE_LOG_FIRST_PASS = 30,
    ONDIE_LOG_MAP_COPY = 31,
    ONDIE_LOG_MAP_PAGE = 32
};

/* Logical page of a page that holds padding, and of one after the first of two passes
 * (nand/page_store.py).
 */
enum { ONDIE_PADDING = -2, ONDIE_FIRST_PASS = -3 };

enum {
    ONDIE_OF_PLAN = 1,   /* `kind` of a record of a plan row: ROW of engine/core/events.py */
    ONDIE_POISON = 0xff /* byte of a plan's memory without valid data: a NaN in every type */
};

/* Record of the log: dtype LOG of engine/core/payload_log.py. */
typedef struct {
    int32_t what, kind, queue, place;
    int64_t row, lpn, ppn, old, sectors, held;
    int32_t n, dev, die, stream, erases;
    uint64_t key;
    double rate;
} ondie_record;

/* Bytes of a request: dtype TRANSFER of nvme/command.py. */
typedef struct {
    int64_t offset, size; /* bytes of the drive */
    uint8_t *data;        /* the host's memory, or null: no bytes move */
    int64_t tag;
} ondie_transfer;

/* State of a slot of the data cache. ONDIE_FLYING: its contents are on their way to flash.
 * ONDIE_CHANGED: so are its earlier contents, which have been copied.
 */
enum ondie_slot { ONDIE_AT_REST = 0, ONDIE_FLYING = 1, ONDIE_CHANGED = 2 };

/* Why ondie_apply has stopped. */
enum ondie_applied {
    ONDIE_NO_SEGMENT = 1,  /* `missing` must be opened first */
    ONDIE_TWICE = 2,       /* a page is programmed that is not erased */
    ONDIE_NOT_APPLIED = 3, /* a kind of record that the caller applies */
    ONDIE_BLANK = 4,       /* bytes are taken from a page that is not programmed */
    ONDIE_NO_REQUEST = 5,  /* bytes move for something that has no memory for them */
    ONDIE_NO_ROOM = 6,     /* the file system must first reserve room for page `missing` */
    ONDIE_FILE_ERASE = 7,  /* the caller erases pages in files */
    ONDIE_DAMAGED = 8,     /* applied; page `missing` has a wrong checksum */
    ONDIE_NO_ENTRY = 9,    /* the caller must first give entries of the cache file free */
    ONDIE_FILE_TRIM = 10,  /* the caller records a trim in a file */
    ONDIE_STATUSES = 11
};

/* State of the room of a run of run_pages pages in files. */
enum ondie_room {
    ONDIE_HOLE = 0,    /* nothing was programmed: the out-of-band data may be a hole */
    ONDIE_RECORDS = 1, /* the out-of-band data have room; a page that is not erased has room too */
    ONDIE_ROOM = 2     /* all pages have room */
};

/* Bits of a segment's mark. */
enum ondie_mark { ONDIE_USED = 1, ONDIE_CHANGED_FILE = 2 };

/* Entry of the cache file: dtype ENTRY of nand/cache_file.py. Its page has the same index. */
typedef struct {
    int64_t lpn, sequence, sectors; /* sectors: bit mask of those that hold data */
    uint32_t checksum;              /* of the page's bytes */
    uint32_t seal;                  /* of the other fields */
} ondie_entry;

/* Memory that is made ready ahead of programs; below. */
typedef struct ondie_ahead ondie_ahead;

/* Memory of one drive. Pages lie in segments of segment_pages pages. */
typedef struct {
    int32_t isa, status, ring_shift, planes, slots;
    int32_t verify; /* 1: the checksum of a page that is read is checked */
    int64_t page_bytes, segment_pages;
    int64_t sequence; /* number of the last program of new data */
    int64_t programs; /* number of the last program */
    int64_t missing;  /* segment that is not open, page without room, or damaged page */
    int64_t run_pages; /* pages of a run, whose room is reserved together */
    uint8_t **pages;  /* address of each segment's bytes, null: not open */
    ondie_spare **spares;
    uint8_t **room; /* enum ondie_room of each run of each segment; null: pages are in memory, or
                       those of a segment are */
    uint8_t *marks; /* enum ondie_mark of each segment; null with `room` */
    uint8_t *cached;          /* slots of the data cache */
    uint8_t *flying;          /* contents on their way to flash, of slots that changed meanwhile */
    uint8_t *state;           /* enum ondie_slot of each slot */
    const uint8_t *zeros;     /* one page */
    uint8_t *trim_bits; /* buffers of trim maps and metadata pages, a page each */
    int64_t *trim_sequence;   /* sequence number of each buffer's contents */
    int64_t *map_composed;    /* of each translation page: number of the first program that it does
                                 not know */
    const ondie_transfer *transfers; /* of each request in the rings of the queue pairs */
    uint8_t *plan_memory; /* pages that plan rows read and write, by logical page */
    int64_t plan_pages;   /* their number, 0: plan rows move no bytes */
    /* With power-loss protection and a store, the contents of slots are also in a file: */
    ondie_entry *entries; /* null: they and trims are not */
    uint8_t *entry_pages; /* null: only trims are, because no write completes in the cache */
    int64_t *entry;        /* 1 + entry of the contents of each slot, or 0 */
    int64_t *leaving;      /* the same of its contents on their way to flash */
    int64_t *content;      /* number of these contents */
    int64_t *free_entries; /* entries that may be overwritten */
    int64_t *left_entries; /* entries that are not needed once the segments are synced */
    int64_t free_count, left_count;
    ondie_ahead *ahead; /* null: no memory is made ready ahead */
} ondie_payload;

/* Return the seal of an entry: the CRC-32C of its other fields. */
uint32_t ondie_entry_seal(int isa, const ondie_entry *entry);

/* Apply records first to count - 1 of a log to the memory of its drives. Return the index of the
 * record at which it stopped (`status` of its drive says why), or count.
 */
int64_t ondie_apply(ondie_payload *drives, const ondie_record *log, int64_t first, int64_t count);

/* --- hand-over between threads ---
 *
 * Times are of CLOCK_MONOTONIC in nanoseconds; INT64_MAX is never. Waits hold no lock of Python.
 */

/* An event count: threads ring it, and wait until it has been rung. */
typedef struct {
    uint64_t rung;     /* number of rings */
    uint32_t word;     /* changes with each ring, and when ondie_deliver wakes in advance */
    uint32_t sleepers; /* threads that sleep, or are about to */
    int32_t processor; /* on which the last thread other than a client has waited for it */
    int32_t apart[27]; /* other data do not share its cache lines */
} ondie_doorbell;

enum ondie_awaited { ONDIE_RUNG = 0, ONDIE_TIMEOUT = 1, ONDIE_INTERRUPTED = 2, ONDIE_INPUT = 3 };

int64_t ondie_now(void);

/* From now on, sleeps of this thread end as early as the kernel can end them. */
void ondie_sleep_exactly(void);

/* Return the number of rings so far. What was written before a ring is visible. */
uint64_t ondie_rung(const ondie_doorbell *bell);

/* Ring `count` times, and wake all who wait. */
void ondie_ring(ondie_doorbell *bell, uint64_t count);

/* Wait until the number of rings is not `seen` (ONDIE_RUNG), until deadline_ns (ONDIE_TIMEOUT), or
 * until a signal (ONDIE_INTERRUPTED). Poll for the first poll_ns and for last_ns before the
 * deadline, and sleep otherwise. other: doorbell of the thread that rings; null: any. A client,
 * which names it, does not poll on the processor that this thread needs; of all clients, one less
 * than there are processors poll at a time.
 */
int ondie_await(ondie_doorbell *bell, uint64_t seen, int64_t poll_ns, int64_t last_ns,
                int64_t deadline_ns, const ondie_doorbell *other);

/* Wait until deadline_ns while nobody rings and nothing can be read from the file `fd` (-1: none).
 * Poll for the last_ns before; before that, sleep in slices in which a ring is not seen.
 */
int ondie_await_quietly(const ondie_doorbell *bell, uint64_t seen, int fd, int64_t last_ns,
                        int64_t deadline_ns);

/* Ring `rung` once, then wait for `bell` as a client does. */
int ondie_ring_and_await(ondie_doorbell *rung, ondie_doorbell *bell, uint64_t seen, int64_t poll_ns,
                         int64_t deadline_ns);

enum { ONDIE_AHEAD = 1024 };

/* Parts of memory that programs reach next, in the order in which one thread adds them and another
 * one makes them ready. One that finds no room is left out.
 */
struct ondie_ahead {
    ondie_doorbell bell; /* rung for each part, and at the end */
    uint64_t added, ready;
    uint64_t closing;    /* 1: the thread ends */
    uint64_t part[1024], bytes[1024]; /* address and size */
};

/* A page at `to` is programmed in memory that ends at `end`: if it is the first one of a large page,
 * let the next large page be made ready.
 */
void ondie_add_ahead(ondie_ahead *ahead, uint8_t *to, int64_t page_bytes, uint8_t *end);

/* Make parts ready as they are added, until `closing`. Holds no lock of Python. */
void ondie_run_ahead(ondie_ahead *ahead);

/* Let ondie_run_ahead return. */
void ondie_close_ahead(ondie_ahead *ahead);

enum { ONDIE_LAG_BUCKETS = 64 };

/* Lag of completions (emu/nvme/client_queue.py). */
typedef struct {
    uint64_t histogram[64]; /* by the number of bits of the lag in nanoseconds */
    uint64_t late;          /* lags of late_ns or more */
    int64_t late_ns;
    int64_t max_ns;
    double sum_ns;
} ondie_lag;

/* Wait until at_ns, sleeping until last_ns before. Then count the lag of `due` completions that
 * were due at due_ns, and ring client i counts[i] times. Clients that sleep are woken in advance,
 * so that they poll at at_ns. Return the number of those that sleep still. own: doorbell of the
 * caller.
 */
uint32_t ondie_deliver(int64_t at_ns, int64_t last_ns, ondie_doorbell *const *clients,
                       const uint64_t *counts, size_t count, const int64_t *due_ns, size_t due,
                       ondie_lag *lag, ondie_doorbell *own);

/* --- NVMe queues in the memory of a guest --- */

/* Command of a drive: dtype COMMAND of nvme/command.py. */
typedef struct {
    int32_t op, queue;
    int64_t offset, size;
    int32_t stream, fua, priority, atomic_unit;
    int64_t fence_token, data, tag, arrival;
} ondie_command;

/* Mapped range of a guest's addresses. memory: null if the server cannot reach it. */
typedef struct {
    uint64_t first, last; /* addresses of its first and last byte */
    uint8_t *memory;
    uint32_t readable, writable;
} ondie_guest_region;

/* Namespace; blocks = 0: not attached. */
typedef struct {
    int64_t first; /* first byte on the drive */
    uint64_t blocks;
    uint32_t block_bytes, writable;
} ondie_guest_space;

/* A guest as its controller sees it. */
typedef struct {
    const ondie_guest_region *regions; /* sorted by address, disjoint */
    uint64_t count;
    const ondie_guest_space *spaces; /* of each namespace identifier from 0 to nsids */
    uint64_t nsids;
    uint64_t page;     /* bytes of a memory page, CC.MPS */
    uint64_t transfer; /* bytes of the largest transfer, MDTS */
    uint64_t unit;     /* bytes of a mapping unit, a power of two */
    int32_t read, write; /* operations of ondie_command */
    int32_t through;     /* 1: a completed write is on flash */
    uint8_t *area;       /* data of a batch */
    uint64_t area_bytes, area_used;
    uint64_t reads, writes, unaligned; /* counts of plain commands */
    uint8_t seen[8192];                /* bits of command identifiers; zeros between calls */
} ondie_guest;

enum {
    ONDIE_GUEST_LISTS = 512 /* PRP lists of a plain command */
};

enum ondie_guest_kind {
    ONDIE_GUEST_OTHER = 0,    /* needs rules that are not here, also for what is wrong with it */
    ONDIE_GUEST_PLAIN = 1,    /* a read or write whose data pointer is right */
    ONDIE_GUEST_CONFLICT = 2, /* its identifier is in use */
    ONDIE_GUEST_FAILED = 3,   /* was plain, and the drive has ended it with a status */
    ONDIE_GUEST_LOST = 4      /* was plain, and the memory for its data has gone */
};

/* Submission queue entry of a batch. */
typedef struct {
    uint64_t prp1, prp2, size, data; /* data: first byte in the area */
    int64_t command;                 /* index of its command */
    uint32_t cid, opcode, kind, unaligned;
} ondie_guest_request;

/* Completion queue in the guest's memory. */
typedef struct {
    uint64_t base;
    uint32_t entries, tail, phase;
} ondie_guest_queue;

/* Let accesses of this file to memory that has gone (SIGBUS) end with an error. */
void ondie_guest_watch(void);

/* Copy `size` bytes from or to the guest; without data, only check that they are there. Return 0 if
 * they are not, or have gone.
 */
int ondie_guest_copy(const ondie_guest *guest, uint64_t address, uint8_t *data, uint64_t size,
                     int to_guest);

/* Decode `count` submission queue entries of 64 bytes. Append the commands of plain ones to the
 * `made` ones of `commands`, with their index as tag, and write the data of writes to the area.
 * fast = 0: none is plain. Return the number of commands.
 */
int64_t ondie_guest_decode(ondie_guest *guest, const uint8_t *entries, int64_t count, int fast,
                           ondie_guest_request *requests, ondie_command *commands, int64_t made);

/* Write a completion queue entry without its phase tag; the phase follows in the same store as the
 * identifier. Return 0 if the queue has gone.
 */
int ondie_guest_post(const ondie_guest *guest, ondie_guest_queue *queue, uint64_t low,
                     uint64_t high);

/* Copy the data of plain reads to the guest, and post the completions of plain commands that have
 * succeeded; `statuses` are those of the commands. Return their number, or -1 if the queue has
 * gone.
 */
int64_t ondie_guest_finish(ondie_guest *guest, ondie_guest_request *requests, int64_t count,
                           const int32_t *statuses, uint32_t sqid, uint32_t sqhd,
                           ondie_guest_queue *queue);

/* Doorbell in memory: its number, the value that is known, the event index at which the guest is
 * to write the register too, and the value found.
 */
typedef struct {
    uint32_t number, value, event, seen;
} ondie_guest_doorbell;

/* Read the values of `count` doorbells, a page of 4 bytes each at the guest's address `shadow`, for
 * up to spin_ns until one is not the known value. If none is and `arm` is set, write their events
 * to the page `events`, and read them again: a guest that changes a doorbell afterwards sees its
 * event. Return 1 if a value is not the known one, 0 if all are, -1 if a page is not there.
 */
int ondie_guest_doorbells(const ondie_guest *guest, uint64_t shadow, uint64_t events,
                          ondie_guest_doorbell *bells, int64_t count, int64_t spin_ns, int arm);

/* --- The driver's side of an NVMe queue pair --- */

enum {
    ONDIE_HOST_DEPTH = 256, /* largest number of commands in flight */
    ONDIE_HOST_LATE = -1,   /* no completion for longest_ns */
    ONDIE_HOST_FAILED = -2, /* a command has failed: see status */
    ONDIE_HOST_LOST = -3    /* the connection has ended */
};

/* Queue pair of a host. doorbells, events: pages of doorbells in memory and of their event indexes,
 * or null: registers. number: of the doorbells of submission and completion queue. post: messages
 * to the socket fd that write these registers.
 */
typedef struct {
    uint8_t *submission, *completion;
    uint8_t *doorbells, *events;
    uint32_t entries, tail, head, told, phase, status;
    uint32_t number[2];
    int32_t fd;
    uint8_t post[2][36];
    uint64_t drawn, messages;
    int64_t ran_ns;
} ondie_host_queue;

/* Keep `depth` commands in flight for time_ns, at least one round of them, and wait for the last
 * ones. `entries`: submission queue entries of 64 bytes, one for each command identifier; their first
 * blocks are taken from the `count` ones of `places` in turn. Return the number of commands, whose time is ran_ns, or
 * ONDIE_HOST_LATE, ONDIE_HOST_FAILED or ONDIE_HOST_LOST.
 */
int64_t ondie_host_run(ondie_host_queue *queue, const uint8_t *entries, uint32_t depth,
                       const uint64_t *places, uint64_t count, int64_t time_ns,
                       int64_t longest_ns);

/* --- LDPC code words; the definition is in kernels/ldpc.py --- */

enum {
    ONDIE_LDPC_ROWS = 4,
    ONDIE_LDPC_HARD = 12,    /* message of a bit that is read */
    ONDIE_LDPC_FIRST = 4,    /* magnitude of answers to such messages in the first iteration */
    ONDIE_LDPC_LARGEST = 32, /* largest magnitude that a check takes into account */
    ONDIE_LDPC_KNOWN = 100,  /* message of a bit that is not stored */
    ONDIE_LDPC_FEW = 24,     /* bits are flipped if at most this part of the checks fails, */
    ONDIE_LDPC_AFTER = 2     /* after an iteration in at most so many rounds */
};

enum ondie_ldpc_outcome {
    ONDIE_LDPC_CORRECT = 0,
    ONDIE_LDPC_FAILED = 1,   /* checks fail after the last iteration */
    ONDIE_LDPC_WRONG_CRC = 2 /* a code word whose CRC is another one */
};

/* A code. shifts: of each row and column, -1: no circulant.
 * inverse: powers of the shift; those of parity column p and row r begin at inverse_start[4 p + r].
 */
typedef struct {
    int32_t columns;
    int32_t circulant;   /* bits of a column, a power of two from 64 */
    int32_t stored_bits; /* data and CRC */
    int32_t word_bytes;  /* data, CRC and parity */
    const int32_t *shifts;
    const int32_t *inverse;
    const int32_t *inverse_start;
} ondie_ldpc;

/* Result of a word: iterations of min-sum, rounds of bit flipping, and an ondie_ldpc_outcome. */
typedef struct {
    int32_t iterations, flips, outcome;
} ondie_ldpc_result;

/* Return the bytes of memory that a call needs. */
size_t ondie_ldpc_memory(const ondie_ldpc *code);

/* Write `count` code words; memory: as many bytes as ondie_ldpc_memory says, aligned to
 * 64.
 */
int ondie_ldpc_encode(int isa, const ondie_ldpc *code, const uint8_t *data, uint8_t *words,
                      size_t count, uint8_t *memory);

/* Correct `count` words, or 8 * word_bytes messages of each (positive: 0) if soft is not null, with
 * up to `iterations` of min-sum, after up to `flips` rounds of bit flipping for words.
 */
int ondie_ldpc_decode(int isa, const ondie_ldpc *code, const uint8_t *words, const int8_t *soft,
                      int iterations, int flips, uint8_t *corrected, ondie_ldpc_result *results,
                      size_t count, uint8_t *memory);

#endif
