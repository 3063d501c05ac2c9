/* Memory of pages, made ready by another thread before a program reaches it.
 *
 * This file owns the queue of parts of memory and the thread's loop. It does not own the pages
 * (payload.c) or the thread (emu/nand/memory_ahead.py).
 * Source: Linux, madvise(2) with MADV_POPULATE_WRITE (5.14), transparent large pages. The first touch
 * of memory clears it, and in a virtual machine may wait for the host: 0.5 to 3 ms for a large page,
 * in which the drive would do nothing else.
 */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/mman.h>

#include "ondie.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { LARGE_PAGE = 1 << 21 };

_Static_assert(sizeof((ondie_ahead *)0)->part == ONDIE_AHEAD * sizeof(uint64_t), "room for all parts");

#define SHARED(field) ((_Atomic uint64_t *)&(field))

void ondie_add_ahead(ondie_ahead *ahead, uint8_t *to, int64_t page_bytes, uint8_t *end) {
    const uint64_t within = (uint64_t)(uintptr_t)to % LARGE_PAGE;
    if (within >= (uint64_t)page_bytes) return;
    uint8_t *next = to - within + LARGE_PAGE;
    if (next >= end) return;
    const uint64_t at = ahead->added;
    if (at - atomic_load_explicit(SHARED(ahead->ready), memory_order_acquire) >= ONDIE_AHEAD) return;
    ahead->part[at % ONDIE_AHEAD] = (uint64_t)(uintptr_t)next;
    ahead->bytes[at % ONDIE_AHEAD] = (uint64_t)(end - next < LARGE_PAGE ? end - next : LARGE_PAGE);
    atomic_store_explicit(SHARED(ahead->added), at + 1, memory_order_release);
    ondie_ring(&ahead->bell, 1);
}

void ondie_run_ahead(ondie_ahead *ahead) {
    for (;;) {
        /* before the looks at what is rung for: a ring behind it ends the wait */
        const uint64_t seen = ondie_rung(&ahead->bell), at = ahead->ready;
        if (atomic_load(SHARED(ahead->closing))) return;
        if (at == atomic_load_explicit(SHARED(ahead->added), memory_order_acquire)) {
            ondie_await(&ahead->bell, seen, 0, 0, INT64_MAX, NULL);
            continue;
        }
        /* Without this advice, or memory, the program itself touches the part first. */
        madvise((void *)(uintptr_t)ahead->part[at % ONDIE_AHEAD], ahead->bytes[at % ONDIE_AHEAD],
                MADV_POPULATE_WRITE);
        atomic_store_explicit(SHARED(ahead->ready), at + 1, memory_order_release);
    }
}

void ondie_close_ahead(ondie_ahead *ahead) {
    atomic_store(SHARED(ahead->closing), 1);
    ondie_ring(&ahead->bell, 1);
}
