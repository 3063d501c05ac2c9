/* Owns: idle threads, and dividing work over them.
 * Does not: know what is worked on, or how small a piece pays (dispatch.c).
 * Source: own; work stealing over ranges in the manner of Blumofe & Leiserson, 1999.
 *
 * Each thread begins with a share of its own, so that repeated calls find their data in its cache,
 * and takes what others have not begun when it has done. Nobody waits for a thread that has not
 * come: the caller works through everything that is not begun, closes the gate, and waits for those
 * that are inside. Threads that have just worked look for more for a while before they sleep.
 */
#define _POSIX_C_SOURCE 200809L
#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

enum {
    MOST = 1024,   /* threads, the caller among them: ONDIE_THREADS */
    PIECES = 8,    /* of each thread's share */
    LOOKS = 64,    /* between two looks at the clock */
    AWAKE = 100000 /* nanoseconds that a thread looks for more before it sleeps */
};
#define CLOSED (-(1 << 20))

typedef struct {
    _Alignas(64) atomic_size_t next;
    size_t end;
} range;

static struct {
    pthread_mutex_t busy; /* held by the caller that has the threads */
    pthread_mutex_t sleep;
    pthread_cond_t wake;
    int workers;
    _Alignas(64) atomic_uint number; /* of jobs begun */
    _Alignas(64) atomic_int gate;    /* workers inside, far below 0 when closed */
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

/* Denormals are kept, whatever the thread has been told before: what a thread is told is its own.
 * Returns that. */
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

/* The share of thread `own`, then what is left of the others'. */
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

/* Wait until a job begins that is not number `seen`; its number. */
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

/* A forked child has none of the threads. */
static void forget(void) {
    pthread_mutex_init(&pool.busy, 0);
    pthread_mutex_init(&pool.sleep, 0);
    pthread_cond_init(&pool.wake, 0);
    pool.workers = 0;
    atomic_store(&pool.number, 0);
    atomic_store(&pool.gate, CLOSED);
    atomic_store(&pool.sleepers, 0);
}

/* Have as many workers as can be had, without the process's signals. */
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
        if (looks > 16 * LOOKS) sched_yield(); /* it may be waiting for this processor */
    }
    pthread_mutex_unlock(&pool.busy);
}
