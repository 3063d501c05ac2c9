/* Casts of flat arrays between FP32 and the two 16-bit formats.
 *
 * This file owns the loops. It does not own the cast of one number (half.h).
 * Source: this project.
 */
#include "half.h"
#include "isa.h"

#define CAST(name, from, to)                                                     \
    static void FN(name)(const from *restrict x, to *restrict y, size_t n) {     \
        for (size_t i = 0; i < n; i++) y[i] = name(x[i]);                        \
    }

CAST(to_bf16, float, uint16_t)
CAST(from_bf16, uint16_t, float)
#if !ONDIE_HALVES
CAST(to_fp16, float, uint16_t)
CAST(from_fp16, uint16_t, float)
#else /* processor conversions of ONDIE_HALVES numbers; same bits as half.h except NaN payloads */
#if ONDIE_HALVES == 16
#define VECTOR(name) _mm512_##name
#define LOAD _mm256_loadu_si256
#define STORE _mm256_storeu_si256
typedef __m256i FN(halves);
#elif ONDIE_HALVES == 8
#define VECTOR(name) _mm256_##name
#define LOAD _mm_loadu_si128
#define STORE _mm_storeu_si128
typedef __m128i FN(halves);
#else /* four numbers, as on NEON; used by instructions.py */
#define VECTOR(name) _mm_##name
#define LOAD _mm_loadl_epi64
#define STORE _mm_storel_epi64
typedef __m128i FN(halves);
#endif
static void FN(to_fp16)(const float *restrict x, uint16_t *restrict y, size_t n) {
    size_t i = 0;
    for (; i + ONDIE_HALVES <= n; i += ONDIE_HALVES)
        STORE((FN(halves) *)(y + i),
              VECTOR(cvtps_ph)(VECTOR(loadu_ps)(x + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++) y[i] = to_fp16(x[i]);
}

static void FN(from_fp16)(const uint16_t *restrict x, float *restrict y, size_t n) {
    size_t i = 0;
    for (; i + ONDIE_HALVES <= n; i += ONDIE_HALVES)
        VECTOR(storeu_ps)(y + i, VECTOR(cvtph_ps)(LOAD((const FN(halves) *)(x + i))));
    for (; i < n; i++) y[i] = from_fp16(x[i]);
}
#undef VECTOR
#undef LOAD
#undef STORE
#endif
#undef CAST
