/* Owns: what dividing work over threads looks like to its callers.
 * Does not: do it (threads.c).
 * Source: own.
 */
#ifndef ONDIE_THREADS_H
#define ONDIE_THREADS_H

#include <stddef.h>

/* Call work(job, from, to) for runs that together make [0, n), each once, on at most `threads` threads;
 * the caller is one of them. Which thread has which run is open. */
void ondie_divide(size_t n, int threads, void (*work)(void *job, size_t from, size_t to), void *job);

#endif
