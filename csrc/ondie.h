/* The whole C interface of ondie. cffi reads this very file, so it holds plain declarations only.
 *
 * Arrays. Flat, aligned to the element (64 bytes is fastest), any length including 0. The arrays
 * of one part must not overlap. Nothing is remembered between calls but idle threads, so calls on
 * disjoint arrays may run on any number of threads; one of them has the idle threads, others none.
 * Results do not depend on how many work.
 *
 * Arithmetic. Every operation is rounded separately to FP32 in the order written, with IEEE
 * square root and division; no contraction, no reassociation, no flushing of denormals. Hence
 * every instruction set gives the same bits. Where a fused multiply-add belongs to the
 * definition it is written fma(a, b, c) = a * b + c rounded once.
 *
 * isa. Which of the compiled objects runs: the caller chooses, nothing is picked behind its back.
 */
#ifndef ONDIE_H
#define ONDIE_H

#include <stddef.h>
#include <stdint.h>

enum ondie_isa {
    ONDIE_BASE = 0,   /* what every processor of the architecture has: SSE2, NEON */
    ONDIE_AVX2 = 1,   /* AVX2, FMA and F16C, 256-bit vectors */
    ONDIE_AVX512 = 2, /* AVX-512 F, BW, DQ, VL, 512-bit vectors */
    ONDIE_ISAS = 3
};

enum ondie_status {
    ONDIE_OK = 0,
    ONDIE_NO_ISA = -1,    /* isa not compiled in, or this processor lacks it */
    ONDIE_NO_UPDATE = -2, /* unknown operation or variant, or the two do not go together */
    ONDIE_OVERLAP = -3    /* two arrays of a part share memory */
};

enum ondie_size {
    ONDIE_GRAIN = 4096,      /* elements of one part that stay with one thread */
    ONDIE_LEAST = 16384,     /* parameters that pay a thread */
    ONDIE_THREADS = 1024,    /* at most; more are as these */
    ONDIE_NORM_BLOCK = 4096, /* elements summed into one partial result */
    ONDIE_NORM_LANES = 32,   /* accumulators within a block */
    ONDIE_CODE_BLOCK = 256,  /* elements that share a scale in 8-bit states */
    ONDIE_CODE_BUCKETS = 3073,
    ONDIE_CODE_FRACTION = 15,
    ONDIE_CODE_UNSURE = 4 /* error of a place, times 2^ONDIE_CODE_FRACTION, and more */
};

/* 1 when code for this instruction set is compiled in and this processor runs it. */
int ondie_isa_runs(int isa);

/* --- updates ---
 *
 * mad(a, b, c) is a * b + c, rounded after each operation in the canonical variant and once, as
 * fma, in the torch variant. Scalars are folded in double precision and rounded once to FP32; s is
 * +1, or -1 when the objective is maximised. A first line with l2 is left out when l2 = 0.
 *
 * ONDIE_SGD.  coef: 0 lr (s lr)  1 l2 (s weight_decay)
 *     g = mad(w, l2, g)
 *     w = mad(g, -lr, w)
 *
 * ONDIE_MOMENTUM, state m.  coef: 0 lr  1 l2 (s weight_decay)  2 mu (momentum)
 *                                 3 c1 (s (1 - dampening))
 * In the first step the buffer becomes the gradient itself: mu = -0, c1 = s, which keeps signed
 * zeros.
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
 * canonical: c1 = s (1 - beta1), l2 = s weight_decay, root = 1 / sqrt(1 - beta2^t), step = lr / (1 - beta1^t)
 *     g = g + l2 w
 *     m = beta1 m + c1 g
 *     v = beta2 v + (c2 g) g
 *     w = decay w - step (m / (sqrt(v) root + eps))
 * torch: c1 = 1 - beta1, l2 = weight_decay, root = sqrt(1 - beta2^t), step = -lr / (1 - beta1^t), sign = s
 *     g = sign g;  g = fma(w, l2, g)
 *     m = fma(g - m, c1, m)           (c1 < 1/2; else m = fma(m - g, 1 - c1, g))
 *     v = fma(c2 g, g, beta2 v)
 *     w = decay w + (step m) / (sqrt(v) / root + eps)
 *
 * ONDIE_DIE_ADAM, states m and v, and ONDIE_DIE_ADAGRAD, state v: the arithmetic of a processing
 * element on the die, FP32, canonical only. isqrt(x) = y, the float whose bits are 0x5f3759df - (bits of x >> 1),
 * and `newton` times y = y (1.5 - ((x / 2) y) y).
 * coef of Adam: 0 beta1  1 c1  2 beta2  3 c2  4 newton  5 l2  6 decay  7 step (-lr root / (1 - beta1^t), root
 * sqrt(1 - beta2^t));  of AdaGrad: 0 lr (-s lr ...)  1 l2  2 newton
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

/* How the arrays are stored; the arithmetic is that of the canonical form but for ONDIE_TORCH.
 * Narrow results are rounded to nearest even, with ONDIE_BF16_STOCHASTIC at random: the 16 bits
 * that go are added to a hash of the element's number and the key, and the sum is cut off.
 */
enum ondie_variant {
    ONDIE_CANONICAL = 0,
    ONDIE_TORCH = 1,           /* order of operations of PyTorch's fused CPU optimizers */
    ONDIE_FP16 = 2,            /* g FP16, w and states FP32, out: w as FP16 */
    ONDIE_BF16 = 3,            /* the same with BF16 */
    ONDIE_BF16_ALL = 4,        /* w, g and states BF16 */
    ONDIE_BF16_STOCHASTIC = 5, /* the same, w and states rounded at random */
    ONDIE_CODES = 6,           /* w and g FP32, states in 8 bits with a scale per block */
    ONDIE_VARIANTS = 7
};

/* The arrays that n parameters have; unused ones are null. a and b: the states, in order. first:
 * number of the first element, for ONDIE_BF16_STOCHASTIC. scale_a, scale_b: FP32, one per
 * ONDIE_CODE_BLOCK elements; a block begins with each part.
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

/* A map of 8-bit codes to numbers. value[c] rises with c, to 1. Numbers whose magnitudes have the same
 * upper 16 bits share a bucket: those bits less those of 2^-24, at least 0; negative numbers have the
 * second ONDIE_CODE_BUCKETS. Within one the nearest code changes once at most, by one: upwards
 * (negative: downwards) where the lower 16 bits reach bucket & 0x1ffff, and before that it is
 * bucket >> 17. zero: the code of the least magnitude.
 *
 * The same by arithmetic. The number of code c is that of place |c - base|, with the sign of c - base: 0
 * at place 0, else fma(place, line[0][k], line[1][k]), k the lower 4 bits of the place's exponent in
 * FP32. The place of a magnitude y, at least `least` and at most 1: with k the lower 4 bits of half its
 * exponent, one more where y > limit[k]: min(y to_line[0][k] + to_line[1][k], to_line[2][k]), from 2^23 on,
 * with ONDIE_CODE_FRACTION bits behind the point, cut off. FP32 decides unless these bits are less than
 * 2 ONDIE_CODE_UNSURE before the least is taken. Places are codes without signs, and counted from `zero`
 * with signs; those of negative numbers are 127 at most.
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

/* An update of `count` parts: what stays the same from call to call. codes: the maps of signed and of
 * other numbers, for ONDIE_CODES. threads: how many may work at most, for each ONDIE_LEAST
 * parameters one. A part is not divided, unless it is the only one.
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

/* Update the parts, in order within a thread; while one is worked on, the next one's memory is asked for.
 * key: for ONDIE_BF16_STOCHASTIC.
 */
int ondie_update(const ondie_call *call, uint32_t key);

/* The same for one part, its members as arguments. */
int ondie_update_one(int isa, int op, int variant, int threads, void *w, void *g, void *a, void *b,
                     void *out, void *scale_a, void *scale_b, size_t n, uint64_t first,
                     const float *coef, const ondie_codes *codes, uint32_t key);

/* --- what happens to gradients --- */

/* g = g * factor. */
int ondie_scale(int isa, float *g, size_t n, float factor);

/* g = g * factor; *found_inf becomes 1 when any g was infinite or NaN before, else 0. */
int ondie_unscale(int isa, float *g, size_t n, float factor, int32_t *found_inf);

/* partial[b] = sum of squares of block b, in FP64, for ceil(n / ONDIE_NORM_BLOCK) blocks.
 * Element i of a block is added to lane i % ONDIE_NORM_LANES, lanes are then halved pairwise
 * (lane j += lane j + 16, 8, 4, 2, 1). A square of an FP32 number is exact in FP64.
 */
int ondie_squares(int isa, const float *g, size_t n, double *partial);

/* Casts, round to nearest even; denormals are kept, a NaN stays a quiet NaN. */
int ondie_to_fp16(int isa, const float *x, uint16_t *y, size_t n);
int ondie_to_bf16(int isa, const float *x, uint16_t *y, size_t n);
int ondie_from_fp16(int isa, const uint16_t *x, float *y, size_t n);
int ondie_from_bf16(int isa, const uint16_t *x, float *y, size_t n);

/* sum = sum + x, of FP32, FP16 or BF16 numbers. kind: ONDIE_CANONICAL, ONDIE_FP16 or ONDIE_BF16. */
int ondie_accumulate(int isa, int kind, float *sum, const void *x, size_t n);

/* The k largest magnitudes of n numbers, 0 < k <= n < 2^32: indices, rising, and values; of equals, the first.
 * count: room for 2^16 numbers.
 */
void ondie_top_k(const float *g, size_t n, size_t k, uint32_t *index, float *value,
                 uint32_t *count);

/* The memory limit: the traffic of an update (28, 20 and 12 bytes per parameter) with one
 * addition and one multiplication for each array written: x = (x + g) / 2. For benchmarks only.
 */
int ondie_limit28(int isa, int threads, float *w, const float *g, float *m, float *v, size_t n);
int ondie_limit20(int isa, int threads, float *w, const float *g, float *m, size_t n);
int ondie_limit12(int isa, int threads, float *w, const float *g, size_t n);
/* The same for arrays of `bytes[i]` bytes per parameter, of w, g, a, b and out in this order, whatever they hold:
 * w, a and b are read and written, g is read and out written. Their contents become numbers of no meaning.
 */
int ondie_limit(int isa, int threads, const ondie_part *part, const int32_t *bytes);

#endif
