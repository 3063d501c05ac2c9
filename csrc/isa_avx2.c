/* Object for AVX2 with FMA and F16C, 256-bit vectors.
 *
 * This file contains no code; the kernels are in table.c.
 * Source: GCC manual, x86 function attributes; clang language extensions, attribute push.
 */
#include <math.h>
#include <string.h>

#include "ondie.h"

#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,prefer-vector-width=256")
#endif

#define ONDIE_ISA avx2
#define ONDIE_HALVES 8
#define ONDIE_CODES_WIDE "codes_avx2.h"
#define ONDIE_LDPC_WIDE "ldpc_avx2.h"
#include "table.c"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int ondie_no_avx2; /* a translation unit must not be empty */
#endif
