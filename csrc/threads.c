/* Worker threads and the division of work over them.
 *
 * This file owns the threads. It does not own the work or its minimum size (dispatch.c).
 * Source: this project; work stealing over ranges, after Blumofe & Leiserson, 1999.
 *
 * Each thread starts with a fixed share, so repeated calls find their data in its cache. A thread
 * that finishes its share steals pieces that other threads have not started. The caller never waits
 * for a worker that has not started: it processes all remaining pieces, closes the gate, and waits
 * only for workers inside the gate. Workers poll for a new job for a short time before they sleep.
 */
#define _POSIX_C_SOURCE 200809L
#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

enum {
    MOST = 1024,   /* threads including the caller; equals ONDIE_THREADS */
    PIECES = 8,    /* pieces per share */
    LOOKS = 64,    /* polls between two readings of the clock */
    AWAKE = 100000 /* nanoseconds that a worker polls before it sleeps */
};
#define CLOSED (-(1 << 20))

typedef struct {
    _Alignas(64) atomic_size_t next;
    size_t end;
} range;

static struct {
    pthread_mutex_t busy; /* held by the caller that uses the workers */
    pthread_mutex_t sleep;
    pthread_cond_t wake;
    int workers;
    _Alignas(64) atomic_uint number; /* number of jobs started */
    _Alignas(64) atomic_int gate;    /* number of workers inside; far below 0 if closed */
    atomic_int sleepers;
    int threads;
    size_t piece;
    void (*work)(void *, size_t, size_t);
    void *job;
    range ranges[MOST];
} pool = {.busy = PTHREAD_MUTEX_INITIALIZER,
          .sleep = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER,
          .gate = CLOSED};

/* Set the floating-point control register of this thread so that denormals are kept. Return the
 * previous value of the register. */
static unsigned keep_denormals(void) {
#if defined(__x86_64__)
    const unsigned before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(0x1f80);
    return before;
#else
    return 0;
#endif
}

static void as_before(unsigned before) {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(before);
#else
    (void)before;
#endif
}

static void rest(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* Process the share of thread `own`, then the remaining pieces of other shares. */
static void take(int own) {
    const unsigned before = keep_denormals();
    for (int i = 0; i < pool.threads; i++) {
        range *const r = &pool.ranges[(own + i) % pool.threads];
        for (;;) {
            const size_t from = atomic_fetch_add(&r->next, pool.piece);
            if (from >= r->end) break;
            pool.work(pool.job, from, from + pool.piece < r->end ? from + pool.piece : r->end);
        }
    }
    as_before(before);
}

/* Wait until a job other than number `seen` starts; return its number. */
static unsigned wait_for(unsigned seen) {
    const long long until = now() + AWAKE;
    do
        for (int i = 0; i < LOOKS; i++) {
            const unsigned number = atomic_load(&pool.number);
            if (number != seen) return number;
            rest();
        }
    while (now() < until);
    pthread_mutex_lock(&pool.sleep);
    atomic_fetch_add(&pool.sleepers, 1);
    while (atomic_load(&pool.number) == seen) pthread_cond_wait(&pool.wake, &pool.sleep);
    atomic_fetch_sub(&pool.sleepers, 1);
    pthread_mutex_unlock(&pool.sleep);
    return atomic_load(&pool.number);
}

static void *worker(void *argument) {
    const int own = (int)(size_t)argument;
    for (unsigned seen = 0;;) {
        seen = wait_for(seen);
        if (atomic_fetch_add(&pool.gate, 1) >= 0 && own < pool.threads) take(own);
        atomic_fetch_sub(&pool.gate, 1);
    }
    return 0;
}

/* Reset the pool in a forked child, which has no workers. */
static void forget(void) {
    pthread_mutex_init(&pool.busy, 0);
    pthread_mutex_init(&pool.sleep, 0);
    pthread_cond_init(&pool.wake, 0);
    pool.workers = 0;
    atomic_store(&pool.number, 0);
    atomic_store(&pool.gate, CLOSED);
    atomic_store(&pool.sleepers, 0);
}

/* Start worker threads until there are `workers` of them or no further thread can be started.
 * Workers block all signals. */
static void hire(int workers) {
    static int asked;
    sigset_t all, before;
    if (!asked) asked = !pthread_atfork(0, 0, forget);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool.workers < workers) {
        pthread_t thread;
        if (pthread_create(&thread, 0, worker, (void *)(size_t)(pool.workers + 1))) break;
        pthread_detach(thread);
        pool.workers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, 0);
}

void ondie_divide(size_t n, int threads, void (*work)(void *, size_t, size_t), void *job) {
    if (threads > MOST) threads = MOST;
    if ((size_t)(threads > 0 ? threads : 1) > n) threads = (int)n;
    if (threads < 2 || pthread_mutex_trylock(&pool.busy)) {
        const unsigned before = keep_denormals();
        if (n) work(job, 0, n);
        as_before(before);
        return;
    }
    hire(threads - 1);
    const size_t share = (n + (size_t)threads - 1) / (size_t)threads;
    pool.threads = threads;
    pool.piece = (share + PIECES - 1) / PIECES;
    pool.work = work;
    pool.job = job;
    for (int i = 0; i < threads; i++) {
        const size_t from = share * (size_t)i, end = from + share;
        atomic_store(&pool.ranges[i].next, from < n ? from : n);
        pool.ranges[i].end = end < n ? end : n;
    }
    atomic_fetch_sub(&pool.gate, CLOSED);
    atomic_fetch_add(&pool.number, 1);
    if (atomic_load(&pool.sleepers)) {
        pthread_mutex_lock(&pool.sleep);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.sleep);
    }
    take(0);
    atomic_fetch_add(&pool.gate, CLOSED);
    for (int looks = 0; atomic_load(&pool.gate) != CLOSED; looks++) {
        rest();
        if (looks > 16 * LOOKS) sched_yield(); /* a worker may need this processor */
    }
    pthread_mutex_unlock(&pool.busy);
}
