/* Object for AVX-512 (F, BW, DQ, VL) with FMA, 512-bit vectors.
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
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#endif

#define ONDIE_ISA avx512
#define ONDIE_HALVES 16
#define ONDIE_CODES_WIDE "codes_avx512.h"
#define ONDIE_LDPC_WIDE "ldpc_avx512.h"
#include "table.c"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int ondie_no_avx512; /* a translation unit must not be empty */
#endif
