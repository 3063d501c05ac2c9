/* Doorbells: hand-overs between threads of a process, and waits for them or for a time.
 *
 * This file owns the doorbell, its waits, and the delivery of completions at a time. It does not
 * own what is handed over (emu/nvme/client_queue.py), and knows no lock of Python.
 * Source: Linux, futex(2): an event count, that is a count of events and of threads that sleep.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ondie.h"

enum {
    LOOKS = 4,          /* looks at the doorbell between two readings of the clock */
    ROUSED_NS = 100000, /* polling of a thread that ondie_deliver has woken in advance */
    INPUT_NS = 5000,    /* time between two looks for input */
    SLICE_NS = 100000   /* longest sleep in which a doorbell is not seen */
};

#define RUNG(bell) ((_Atomic uint64_t *)&(bell)->rung)
#define WORD(bell) ((_Atomic uint32_t *)&(bell)->word)
#define PROCESSOR(bell) ((_Atomic int32_t *)&(bell)->processor)
#define SLEEPERS(bell) ((_Atomic uint32_t *)&(bell)->sleepers)

static _Atomic int polling; /* clients that poll now */
static int most_polling;    /* one processor is left to the thread that they wait for */

__attribute__((constructor)) static void count_processors(void) {
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    most_polling = count - 1;
}

static void rest(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

int64_t ondie_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void ondie_sleep_exactly(void) { prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL); }

static struct timespec timespec_of(int64_t ns) {
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

/* Sleep while `word` has the value `seen`, until `until_ns`. Return errno, or 0 after a wake. */
static int futex_wait(ondie_doorbell *bell, uint32_t seen, int64_t until_ns) {
    struct timespec until = timespec_of(until_ns);
    long got = syscall(SYS_futex, &bell->word, FUTEX_WAIT_BITSET_PRIVATE, seen,
                       until_ns == INT64_MAX ? NULL : &until, NULL, FUTEX_BITSET_MATCH_ANY);
    return got == 0 ? 0 : errno;
}

/* Change the word, and wake all who sleep. A thread that is about to sleep has either been counted
 * before sleepers are read here, or finds another word in the kernel.
 */
static void rouse(ondie_doorbell *bell) {
    atomic_fetch_add(WORD(bell), 1);
    if (atomic_load(SLEEPERS(bell)))
        syscall(SYS_futex, &bell->word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

uint64_t ondie_rung(const ondie_doorbell *bell) {
    return atomic_load_explicit(RUNG((ondie_doorbell *)bell), memory_order_acquire);
}

void ondie_ring(ondie_doorbell *bell, uint64_t count) {
    atomic_fetch_add(RUNG(bell), count);
    rouse(bell);
}

/* Return 1 if the thread that `other` belongs to was last on this processor. */
static int shares_processor(const ondie_doorbell *other) {
    return other && atomic_load_explicit(PROCESSOR(other), memory_order_relaxed) == sched_getcpu();
}

static void note_processor(ondie_doorbell *own) {
    atomic_store_explicit(PROCESSOR(own), sched_getcpu(), memory_order_relaxed);
}

/* Poll until `until_ns`, or until `other` needs this processor; return 1 if the doorbell rings. */
static int look_until(const ondie_doorbell *bell, uint64_t seen, int64_t until_ns,
                      const ondie_doorbell *other) {
    do {
        for (int look = 0; look < LOOKS; look++) {
            if (ondie_rung(bell) != seen) return 1;
            rest();
        }
    } while (ondie_now() < until_ns && !shares_processor(other));
    return ondie_rung(bell) != seen;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t before(int64_t time_ns, int64_t by_ns) {
    return time_ns == INT64_MAX ? INT64_MAX : time_ns - by_ns;
}

static int await_rung(ondie_doorbell *bell, uint64_t seen, int64_t poll_until_ns, int64_t last_ns,
                      int64_t deadline_ns, const ondie_doorbell *other, int may_poll) {
    uint32_t word = atomic_load(WORD(bell));
    for (;;) {
        int64_t now = ondie_now();
        if (ondie_rung(bell) != seen) return ONDIE_RUNG;
        if (now >= deadline_ns) return ONDIE_TIMEOUT;
        int polls = may_poll && !shares_processor(other);
        if (polls && now < poll_until_ns) {
            if (look_until(bell, seen, least(poll_until_ns, deadline_ns), other)) return ONDIE_RUNG;
            continue;
        }
        if (polls && now >= before(deadline_ns, last_ns)) {
            if (look_until(bell, seen, deadline_ns, other)) return ONDIE_RUNG;
            continue;
        }
        atomic_fetch_add(SLEEPERS(bell), 1);
        int status = 0;
        if (ondie_rung(bell) == seen)
            status = futex_wait(bell, word, polls ? before(deadline_ns, last_ns) : deadline_ns);
        atomic_fetch_sub(SLEEPERS(bell), 1);
        uint32_t found = atomic_load(WORD(bell));
        if (found != word) poll_until_ns = ondie_now() + ROUSED_NS;
        word = found;
        if (status == EINTR && ondie_rung(bell) == seen) return ONDIE_INTERRUPTED;
    }
}

int ondie_await(ondie_doorbell *bell, uint64_t seen, int64_t poll_ns, int64_t last_ns,
                int64_t deadline_ns, const ondie_doorbell *other) {
    if (!other) note_processor(bell);
    int may_poll = !other || atomic_fetch_add(&polling, 1) < most_polling;
    int found = await_rung(bell, seen, ondie_now() + poll_ns, last_ns, deadline_ns, other,
                           may_poll);
    if (other) atomic_fetch_sub(&polling, 1);
    else note_processor(bell);
    return found;
}

int ondie_await_quietly(const ondie_doorbell *bell, uint64_t seen, int fd, int64_t last_ns,
                        int64_t deadline_ns) {
    struct pollfd input = {.fd = fd, .events = POLLIN};
    int64_t next_look = 0;
    for (;;) {
        int64_t now = ondie_now();
        if (ondie_rung(bell) != seen) return ONDIE_RUNG;
        if (now >= deadline_ns) return ONDIE_TIMEOUT;
        int64_t spare = before(deadline_ns, last_ns) - now;
        if (spare > 0) {
            struct timespec slice = timespec_of(least(spare, SLICE_NS));
            int found = ppoll(&input, 1, &slice, NULL);
            if (found) return found < 0 ? ONDIE_INTERRUPTED : ONDIE_INPUT;
        } else if (fd >= 0 && now >= next_look) {
            int found = poll(&input, 1, 0);
            if (found) return found < 0 ? ONDIE_INTERRUPTED : ONDIE_INPUT;
            next_look = now + INPUT_NS;
        }
        rest();
    }
}

int ondie_ring_and_await(ondie_doorbell *rung, ondie_doorbell *bell, uint64_t seen, int64_t poll_ns,
                         int64_t deadline_ns) {
    ondie_ring(rung, 1);
    return ondie_await(bell, seen, poll_ns, 0, deadline_ns, rung);
}

static void count_lag(ondie_lag *lag, int64_t lag_ns) {
    int bits = 0;
    if (lag_ns < 0) lag_ns = 0;
    while (bits < ONDIE_LAG_BUCKETS - 1 && lag_ns >> bits) bits++;
    lag->histogram[bits]++;
    lag->late += lag_ns >= lag->late_ns;
    lag->sum_ns += lag_ns;
    if (lag_ns > lag->max_ns) lag->max_ns = lag_ns;
}

/* Sleep until `last_ns` before `at_ns`, then poll the clock until `at_ns`; return the time. */
static int64_t wait_until(int64_t at_ns, int64_t last_ns, ondie_doorbell *const *clients,
                          size_t count) {
    struct timespec wake = timespec_of(at_ns - last_ns);
    if (ondie_now() < at_ns - last_ns)
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL) == EINTR)
            ;
    if (ondie_now() < at_ns)
        for (size_t i = 0; i < count; i++)
            if (atomic_load(SLEEPERS(clients[i]))) rouse(clients[i]);
    int64_t now;
    while ((now = ondie_now()) < at_ns) rest();
    return now;
}

uint32_t ondie_deliver(int64_t at_ns, int64_t last_ns, ondie_doorbell *const *clients,
                       const uint64_t *counts, size_t count, const int64_t *due_ns, size_t due,
                       ondie_lag *lag, ondie_doorbell *own) {
    note_processor(own);
    int64_t now = wait_until(at_ns, last_ns, clients, count);
    for (size_t i = 0; i < due; i++) count_lag(lag, now - due_ns[i]);
    uint32_t asleep = 0;
    for (size_t i = 0; i < count; i++) {
        asleep += atomic_load(SLEEPERS(clients[i]));
        ondie_ring(clients[i], counts[i]);
    }
    return asleep;
}
