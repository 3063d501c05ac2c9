/* Interface for dividing work over threads.
 *
 * This file owns the declaration. threads.c owns the implementation.
 * Source: this project.
 */
#ifndef ONDIE_THREADS_H
#define ONDIE_THREADS_H

#include <stddef.h>

/* Call work(job, from, to) for ranges that partition [0, n), on at most `threads` threads including
 * the caller. The assignment of ranges to threads is unspecified. */
void ondie_divide(size_t n, int threads, void (*work)(void *job, size_t from, size_t to), void *job);

#endif
