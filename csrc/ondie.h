/* The whole C interface of ondie. cffi reads this very file, so it holds plain declarations only.
 *
 * Arrays. Flat, FP32 unless said otherwise, aligned to the element (64 bytes is fastest), any
 * length including 0. The arrays of one call must not overlap. Nothing is allocated and nothing
 * is remembered between calls, so calls on disjoint arrays may run on any number of threads.
 *
 * Arithmetic. Every operation is rounded separately to FP32 in the order written, with IEEE
 * square root and division; no contraction, no reassociation, no flushing of denormals. Hence
 * every instruction set gives the same bits. Where a fused multiply-add belongs to the
 * definition it is written fma(a, b, c) = a * b + c rounded once.
 *
 * isa. Which of the compiled objects runs: the caller chooses, nothing is picked behind its back.
 * form. ONDIE_CANONICAL is the definition without fused operations; ONDIE_TORCH the order of
 * operations of PyTorch's fused CPU optimizers.
 * coef. Scalars folded in double precision and rounded once to FP32; each function lists its own.
 * s is +1, or -1 when the objective is maximised.
 */
#ifndef ONDIE_H
#define ONDIE_H

#include <stddef.h>
#include <stdint.h>

enum ondie_isa {
    ONDIE_BASE = 0,   /* what every processor of the architecture has: SSE2, NEON */
    ONDIE_AVX2 = 1,   /* AVX2 and FMA, 256-bit vectors */
    ONDIE_AVX512 = 2, /* AVX-512 F, BW, DQ, VL, 512-bit vectors */
    ONDIE_ISAS = 3
};

enum ondie_form { ONDIE_CANONICAL = 0, ONDIE_TORCH = 1, ONDIE_FORMS = 2 };

enum ondie_status {
    ONDIE_OK = 0,
    ONDIE_NO_ISA = -1,  /* isa not compiled in, or this processor lacks it */
    ONDIE_NO_FORM = -2, /* unknown form */
    ONDIE_OVERLAP = -3  /* two arrays share memory */
};

enum ondie_size {
    ONDIE_NORM_BLOCK = 4096, /* elements summed into one partial result */
    ONDIE_NORM_LANES = 32    /* accumulators within a block */
};

/* 1 when code for this instruction set is compiled in and this processor runs it. */
int ondie_isa_runs(int isa);

/* Adam (decay = 1) and AdamW (l2 = 0), 28 bytes of traffic per parameter.
 * coef: 0 beta1  1 c1  2 beta2  3 c2  4 eps  5 l2  6 decay  7 step  8 root  9 sign
 * canonical: c1 = s (1 - beta1), l2 = s weight_decay, root = 1 / sqrt(1 - beta2^t), step = lr / (1 - beta1^t)
 *     g = g + l2 w                    (left out when l2 = 0)
 *     m = beta1 m + c1 g
 *     v = beta2 v + (c2 g) g
 *     w = decay w - step (m / (sqrt(v) root + eps))
 * torch: c1 = 1 - beta1, l2 = weight_decay, root = sqrt(1 - beta2^t), step = -lr / (1 - beta1^t), sign = s
 *     g = sign g;  g = fma(w, l2, g)  (left out when l2 = 0)
 *     m = fma(g - m, c1, m)           (c1 < 1/2; else m = fma(m - g, 1 - c1, g))
 *     v = fma(c2 g, g, beta2 v)
 *     w = decay w + (step m) / (sqrt(v) / root + eps)
 */
int ondie_adam(int isa, int form, float *w, const float *g, float *m, float *v, size_t n,
               const float *coef);

/* In the four below, mad(a, b, c) is a * b + c, rounded after each operation in the canonical form
 * and once, as fma, in the torch form. The first line is left out when l2 = 0.
 *
 * Plain SGD, 12 bytes per parameter.  coef: 0 lr (s lr)  1 l2 (s weight_decay)
 *     g = mad(w, l2, g)
 *     w = mad(g, -lr, w)
 */
int ondie_sgd(int isa, int form, float *w, const float *g, size_t n, const float *coef);

/* SGD with momentum, 20 bytes per parameter.
 * coef: 0 lr  1 l2 (s weight_decay)  2 mu (momentum)  3 c1 (s (1 - dampening))
 * In the first step the buffer becomes the gradient itself: mu = -0, c1 = s, which keeps signed zeros.
 *     g = mad(w, l2, g)
 *     m = mad(c1, g, mu m)
 *     w = mad(m, -lr, w)
 */
int ondie_momentum(int isa, int form, float *w, const float *g, float *m, size_t n,
                   const float *coef);

/* SGD with Nesterov momentum, 20 bytes per parameter.
 * coef: 0 lr (s lr)  1 l2  2 mu  3 c1 (as above)  4 look (s momentum)
 *     g = mad(w, l2, g)
 *     m = mad(c1, g, mu m)
 *     w = mad(mad(m, look, g), -lr, w)
 */
int ondie_nesterov(int isa, int form, float *w, const float *g, float *m, size_t n,
                   const float *coef);

/* AdaGrad, 20 bytes per parameter.
 * coef: 0 lr (s lr / (1 + (t - 1) lr_decay))  1 l2 (s weight_decay)  2 eps
 *     g = mad(w, l2, g)
 *     v = mad(g, g, v)
 *     w = w - (lr g) / (sqrt(v) + eps)
 */
int ondie_adagrad(int isa, int form, float *w, const float *g, float *v, size_t n,
                  const float *coef);

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

/* The memory limit: the traffic of an update (28, 20 and 12 bytes per parameter) with one
 * addition and one multiplication for each array written: x = (x + g) / 2. For benchmarks only.
 */
int ondie_limit28(int isa, float *w, const float *g, float *m, float *v, size_t n);
int ondie_limit20(int isa, float *w, const float *g, float *m, size_t n);
int ondie_limit12(int isa, float *w, const float *g, size_t n);

#endif
