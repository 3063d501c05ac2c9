/* Copies of pages that do not displace what the caches hold.
 *
 * This file owns the stores past the caches. It does not own what is copied (payload.c).
 * Source: Intel 64 and IA-32 Architectures Optimization Reference Manual, streaming stores.
 */
#ifndef ONDIE_PAST_CACHES_H
#define ONDIE_PAST_CACHES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* Copy a page, whose next reader comes late, past the caches: they keep the tables of the engine, and
 * the lines of `to` are not read before they are overwritten. `drain` has to follow.
 */
static inline void copy_past_caches(uint8_t *to, const uint8_t *from, size_t bytes) {
#if defined(__SSE2__)
    enum { LINE = 64, WORD = 16 };
    const size_t lines = (uintptr_t)to % LINE ? 0 : bytes / LINE;
    for (size_t i = 0; i < lines; i++, to += LINE, from += LINE) {
        __m128i words[LINE / WORD];
        memcpy(words, from, LINE);
        for (int k = 0; k < LINE / WORD; k++) _mm_stream_si128((__m128i *)to + k, words[k]);
    }
    bytes -= lines * LINE;
#endif
    memcpy(to, from, bytes);
}

/* Let the stores of `copy_past_caches` be visible before later ones. */
static inline void drain(void) {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

#endif
