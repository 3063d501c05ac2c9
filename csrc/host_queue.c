/* The driver's side of an NVMe queue pair, for measurements: entries, doorbells, completions.
 *
 * This file owns the loop that keeps commands in flight, as a driver that polls does. It does not
 * own the controller's side (guest.c), or how the queues were made.
 * Source: NVM Express Base Specification 2.0, section 3.3 (queues), annex B.5 (doorbells in
 * memory).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "ondie.h"

enum {
    ENTRY_BYTES = 64,
    COMPLETION_BYTES = 16,
    CID_AT = 2,
    PLACE_AT = 40, /* dwords 10 and 11: the first block */
    POST_BYTES = 36,
    VALUE_AT = 32, /* of the value in a message that writes a register */
    PATIENCE = 256 /* looks for a completion between which the processor is kept */
};

static int64_t now_ns(void) {
    struct timespec found;
    clock_gettime(CLOCK_MONOTONIC, &found);
    return found.tv_sec * INT64_C(1000000000) + found.tv_nsec;
}

/* Write a doorbell: in memory, if it is there, and as a message unless the event index says that
 * none is needed. Return the bytes of the message.
 */
static size_t ring(ondie_host_queue *queue, int which, uint32_t value, uint8_t *message) {
    if (queue->doorbells) {
        _Atomic uint32_t *bell = (_Atomic uint32_t *)queue->doorbells + queue->number[which];
        const _Atomic uint32_t *event =
            (const _Atomic uint32_t *)queue->events + queue->number[which];
        uint32_t old = atomic_load_explicit(bell, memory_order_relaxed);
        atomic_store_explicit(bell, value, memory_order_release);
        atomic_thread_fence(memory_order_seq_cst); /* the value before the event */
        uint32_t told = atomic_load_explicit(event, memory_order_acquire);
        if ((uint16_t)(value - told - 1) >= (uint16_t)(value - old))
            return 0;
    }
    memcpy(message, queue->post[which], POST_BYTES);
    memcpy(message + VALUE_AT, &value, sizeof value);
    return POST_BYTES;
}

static int ring_both(ondie_host_queue *queue, int submitted) {
    uint8_t messages[2 * POST_BYTES];
    size_t bytes = 0, sent = 0;
    if (queue->head != queue->told)
        bytes += ring(queue, 1, queue->head, messages);
    queue->told = queue->head;
    if (submitted)
        bytes += ring(queue, 0, queue->tail, messages + bytes);
    queue->messages += bytes / POST_BYTES;
    while (sent < bytes) {
        ssize_t some = send(queue->fd, messages + sent, bytes - sent, MSG_NOSIGNAL);
        if (some < 0 && errno != EINTR)
            return 0;
        sent += some > 0 ? (size_t)some : 0;
    }
    return 1;
}

int64_t ondie_host_run(ondie_host_queue *queue, const uint8_t *entries, uint32_t depth,
                       const uint64_t *places, uint64_t count, int64_t time_ns,
                       int64_t longest_ns) {
    uint16_t idle[ONDIE_HOST_DEPTH];
    uint32_t idles = depth, flying = 0;
    int64_t done = 0, begin = now_ns(), now = begin, last = begin;
    for (uint32_t i = 0; i < depth; i++)
        idle[i] = (uint16_t)i;
    for (;;) {
        int more = !done || now - begin < time_ns, submitted = more && idles;
        while (more && idles) {
            uint16_t cid = idle[--idles];
            uint8_t *entry = queue->submission + (uint64_t)queue->tail * ENTRY_BYTES;
            memcpy(entry, entries + (uint64_t)cid * ENTRY_BYTES, ENTRY_BYTES);
            memcpy(entry + CID_AT, &cid, sizeof cid);
            memcpy(entry + PLACE_AT, &places[queue->drawn++ % count], sizeof *places);
            queue->tail = (queue->tail + 1) % queue->entries;
            flying++;
        }
        if (!ring_both(queue, submitted))
            return ONDIE_HOST_LOST;
        if (!flying)
            break;
        for (uint32_t looks = 1, found = 0; !found; looks++) {
            const uint8_t *at = queue->completion + (uint64_t)queue->head * COMPLETION_BYTES;
            uint32_t word;
            while (word = atomic_load_explicit((const _Atomic uint32_t *)(at + 12),
                                               memory_order_acquire),
                   (word >> 16 & 1) == queue->phase) {
                uint32_t cid = word & 0xFFFF;
                if (word >> 17 || cid >= depth) {
                    queue->status = word >> 17;
                    return ONDIE_HOST_FAILED;
                }
                idle[idles++] = (uint16_t)cid;
                found++, flying--, done++;
                if (++queue->head == queue->entries)
                    queue->head = 0, queue->phase ^= 1;
                at = queue->completion + (uint64_t)queue->head * COMPLETION_BYTES;
            }
            if (found) {
                last = now = now_ns();
            } else if (looks % PATIENCE == 0) {
                sched_yield();
                now = now_ns();
                if (now - last > longest_ns)
                    return ONDIE_HOST_LATE;
            }
        }
    }
    queue->ran_ns = last - begin;
    return done;
}
