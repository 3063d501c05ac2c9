/* Compilation of one kernel source into one object per instruction set.
 *
 * This file owns the naming scheme and the function table that each object exports. It does not own
 * the kernels or the choice of the object that runs (dispatch.c).
 * Source: GCC manual, function attributes and pragmas.
 *
 * isa_*.c select an instruction set, define ONDIE_ISA as the suffix of every symbol and include the
 * kernel sources. A kernel source that is compiled by itself gives the base object.
 */
#ifndef ONDIE_ISA_H
#define ONDIE_ISA_H

#include <math.h>
#include <string.h>

#include "ondie.h"

#ifndef ONDIE_ISA
#define ONDIE_ISA base
#endif
#ifndef ONDIE_HALVES
#define ONDIE_HALVES 0 /* FP16 numbers per conversion instruction */
#endif

#define ONDIE_JOIN_(name, isa) name##_##isa
#define ONDIE_JOIN(name, isa) ONDIE_JOIN_(name, isa)
#define FN(name) ONDIE_JOIN(name, ONDIE_ISA)

/* A loop that is written once and compiled for each combination of constant flags. */
#define LOOP static inline __attribute__((always_inline)) void

/* Return a * b + c, rounded once if `fused`, else after each operation. */
static inline float mad(float a, float b, float c, int fused) {
    return fused ? fmaf(a, b, c) : a * b + c;
}

/* Update of one parameter: returns the new weight and updates the states in place. */
#define POINT static inline __attribute__((always_inline)) float

/* Update of a part. Arguments: the part, the next part or null, coefficients, code maps, key. */
typedef void (*ondie_update_function)(const ondie_part *, const ondie_part *, const float *,
                                      const ondie_codes *, uint32_t);

typedef struct {
    const ondie_update_function (*update)[ONDIE_VARIANTS];
    void (*accumulate)(float *, const void *, int, size_t);
    void (*scale)(float *, size_t, float);
    int32_t (*unscale)(float *, size_t, float);
    void (*squares)(const float *, size_t, double *);
    void (*to_fp16)(const float *, uint16_t *, size_t);
    void (*to_bf16)(const float *, uint16_t *, size_t);
    void (*from_fp16)(const uint16_t *, float *, size_t);
    void (*from_bf16)(const uint16_t *, float *, size_t);
    void (*limit)(const ondie_part *, const int32_t *);
    void (*limit28)(float *, const float *, float *, float *, size_t);
    void (*limit20)(float *, const float *, float *, size_t);
    void (*limit12)(float *, const float *, size_t);
    size_t (*ldpc_memory)(const ondie_ldpc *);
    void (*ldpc_encode)(const ondie_ldpc *, const uint8_t *, uint8_t *, size_t, uint8_t *);
    void (*ldpc_decode)(const ondie_ldpc *, const uint8_t *, const int8_t *, int, int, uint8_t *,
                        ondie_ldpc_result *, size_t, uint8_t *);
} ondie_table;

extern const ondie_table ondie_table_base;
#if defined(__x86_64__)
extern const ondie_table ondie_table_avx2;
extern const ondie_table ondie_table_avx512;
#endif

#endif
