/* Owns: casts of flat arrays between FP32 and the two 16-bit formats.
 * Does not: say how a number is cast (half.h).
 * Source: own.
 */
#include "half.h"
#include "isa.h"

#define CAST(name, from, to)                                                     \
    static void FN(name)(const from *restrict x, to *restrict y, size_t n) {     \
        for (size_t i = 0; i < n; i++) y[i] = name(x[i]);                        \
    }

CAST(to_bf16, float, uint16_t)
CAST(from_bf16, uint16_t, float)
CAST(to_fp16, float, uint16_t)
CAST(from_fp16, uint16_t, float)
#undef CAST
