/* NVMe queues and data in the memory of a guest: copies, plain reads and writes, completions.
 *
 * This file owns the accesses to a guest's memory, which may go away at any time, and the fast path
 * of reads and writes. It does not own the rules of commands (emu/controller), which it only repeats
 * for commands that need nothing else: every other command is left to them.
 * Source: NVM Express Base Specification 2.0, section 4.1.1 (PRP) and figure "Common Completion
 * Queue Entry Layout"; NVM Command Set Specification 1.0, sections 3.2.4 (Read) and 3.2.6 (Write).
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "ondie.h"

enum {
    OPCODE_WRITE = 1,
    OPCODE_READ = 2,
    ENTRY_BYTES = 64,
    COMPLETION_BYTES = 16,
    FUA_BIT = 1 << 30,
    PLAIN_BITS = 0xFFFF /* of dword 12: the number of blocks */
};

/* --- memory that may go away: the client has truncated its file */

static _Thread_local sigjmp_buf *rescue;
static struct sigaction others;

static void on_bus_error(int number, siginfo_t *info, void *context) {
    if (rescue)
        siglongjmp(*rescue, 1);
    if (others.sa_flags & SA_SIGINFO)
        others.sa_sigaction(number, info, context);
    else if (others.sa_handler != SIG_DFL && others.sa_handler != SIG_IGN)
        others.sa_handler(number);
    else
        sigaction(SIGBUS, &others, NULL); /* the access is repeated, and ends the process */
}

static void install(void) {
    struct sigaction own = {.sa_sigaction = on_bus_error,
                            .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    sigemptyset(&own.sa_mask);
    sigaction(SIGBUS, &own, &others);
}

void ondie_guest_watch(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
}

/* --- copies */

static const ondie_guest_region *region_at(const ondie_guest *guest, uint64_t address) {
    uint64_t low = 0, high = guest->count;
    while (low < high) { /* the last region that begins at `address` or before */
        uint64_t middle = (low + high) / 2;
        if (guest->regions[middle].first <= address)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0 || guest->regions[low - 1].last < address)
        return NULL;
    return &guest->regions[low - 1];
}

/* Copy between the guest and `data`; without `data`, only check. Return 0 if some of the memory is
 * not there. */
static int copy(const ondie_guest *guest, uint64_t address, uint8_t *data, uint64_t size,
                int to_guest) {
    while (size) {
        const ondie_guest_region *region = region_at(guest, address);
        if (!region || !region->memory || !(to_guest ? region->writable : region->readable))
            return 0;
        uint64_t count = region->last - address; /* without the last byte */
        count = count < size - 1 ? count + 1 : size;
        uint8_t *place = region->memory + (address - region->first);
        if (data) {
            if (to_guest)
                memcpy(place, data, count);
            else
                memcpy(data, place, count);
            data += count;
        }
        size -= count;
        if (size && address + count == 0)
            return 0; /* the end of the address space */
        address += count;
    }
    return 1;
}

int ondie_guest_copy(const ondie_guest *guest, uint64_t address, uint8_t *data, uint64_t size,
                     int to_guest) {
    sigjmp_buf here;
    if (sigsetjmp(here, 0)) {
        rescue = NULL;
        return 0;
    }
    rescue = &here;
    int done = copy(guest, address, data, size, to_guest);
    rescue = NULL;
    return done;
}

/* --- PRP */

/* Copy the data of a command between its PRPs and `data`; without `data`, only check. Return 0 for
 * entries that are wrong; emu/controller/prp.py says how. */
static int walk(const ondie_guest *guest, uint64_t prp1, uint64_t prp2, uint8_t *data,
                uint64_t size, uint64_t page, int to_guest) {
    uint64_t first = page - prp1 % page, at = 0, list = prp2;
    if (prp1 % 4)
        return 0;
    first = first < size ? first : size;
    if (!copy(guest, prp1, data, first, to_guest))
        return 0;
    at = first;
    if (at == size)
        return 1;
    if (size - at <= page)
        return prp2 % page == 0 && copy(guest, prp2, data ? data + at : NULL, size - at, to_guest);
    if (prp2 % 8)
        return 0;
    for (int lists = 0; at < size; lists++) {
        uint64_t room = (page - list % page) / 8, needed = (size - at + page - 1) / page;
        if (lists == ONDIE_GUEST_LISTS)
            return 0; /* more than a transfer can need unless a list has one entry, or a loop */
        uint64_t count = needed > room ? room - 1 : needed;
        for (uint64_t i = 0; i < count; i++) {
            uint64_t entry, part = size - at < page ? size - at : page;
            if (!copy(guest, list + 8 * i, (uint8_t *)&entry, 8, 0) || entry % page ||
                !copy(guest, entry, data ? data + at : NULL, part, to_guest))
                return 0;
            at += part;
        }
        if (at < size) {
            if (!copy(guest, list + 8 * count, (uint8_t *)&list, 8, 0) || list % page)
                return 0;
        }
    }
    return 1;
}

static int guarded_walk(const ondie_guest *guest, const ondie_guest_request *request,
                        uint8_t *data, int to_guest) {
    sigjmp_buf here;
    if (sigsetjmp(here, 0)) {
        rescue = NULL;
        return 0;
    }
    rescue = &here;
    int done = walk(guest, request->prp1, request->prp2, data, request->size, guest->page, to_guest);
    rescue = NULL;
    return done;
}

/* --- submission */

static uint64_t word(const uint8_t *entry, int at, int bytes) {
    uint64_t found = 0;
    memcpy(&found, entry + at, bytes);
    return found;
}

/* Return 1 if an entry is a read or write that needs no other rule, and fill request and
 * command. */
static int plain(const ondie_guest *guest, const uint8_t *entry, ondie_guest_request *request,
                 ondie_command *command) {
    uint64_t nsid = word(entry, 4, 4), slba = word(entry, 40, 8), last = word(entry, 48, 4);
    int opcode = entry[0];
    if ((opcode != OPCODE_READ && opcode != OPCODE_WRITE) || entry[1] || nsid > guest->nsids)
        return 0;
    const ondie_guest_space *space = &guest->spaces[nsid];
    int fua = (last & FUA_BIT) != 0;
    last &= ~(uint64_t)FUA_BIT;
    if (last & ~(uint64_t)PLAIN_BITS || !space->blocks || (fua && opcode == OPCODE_READ))
        return 0;
    if (opcode == OPCODE_WRITE && !space->writable)
        return 0;
    uint64_t blocks = last + 1, size = blocks * space->block_bytes;
    if (size > guest->transfer || slba >= space->blocks || blocks > space->blocks - slba)
        return 0;
    request->prp1 = word(entry, 24, 8);
    request->prp2 = word(entry, 32, 8);
    request->size = size;
    memset(command, 0, sizeof *command);
    command->op = opcode == OPCODE_READ ? guest->read : guest->write;
    command->offset = space->first + (int64_t)(slba * space->block_bytes);
    command->size = (int64_t)size;
    command->fua = opcode == OPCODE_WRITE && (fua || guest->through);
    request->unaligned = opcode == OPCODE_WRITE &&
                         ((command->offset | command->size) & (int64_t)(guest->unit - 1)) != 0;
    return 1;
}

/* Return 1 if the identifier was seen before in this batch. */
static int seen_before(ondie_guest *guest, unsigned cid) {
    uint8_t *byte = &guest->seen[cid >> 3], bit = (uint8_t)(1u << (cid & 7));
    int before = (*byte & bit) != 0;
    *byte |= bit;
    return before;
}

int64_t ondie_guest_decode(ondie_guest *guest, const uint8_t *entries, int64_t count, int fast,
                           ondie_guest_request *requests, ondie_command *commands, int64_t made) {
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *entry = entries + i * ENTRY_BYTES;
        ondie_guest_request *request = &requests[i];
        memset(request, 0, sizeof *request);
        request->cid = (uint32_t)word(entry, 2, 2);
        request->opcode = entry[0];
        request->kind = ONDIE_GUEST_OTHER;
        if (seen_before(guest, request->cid)) {
            request->kind = ONDIE_GUEST_CONFLICT;
            continue;
        }
        ondie_command *command = &commands[made];
        if (!fast || !plain(guest, entry, request, command) ||
            request->size > guest->area_bytes - guest->area_used)
            continue;
        request->data = guest->area_used;
        int writes = request->opcode == OPCODE_WRITE;
        if (!guarded_walk(guest, request, writes ? guest->area + request->data : NULL, !writes))
            continue;
        request->kind = ONDIE_GUEST_PLAIN;
        request->command = made;
        guest->area_used += request->size;
        command->data = (int64_t)request->data;
        command->tag = made++;
    }
    for (int64_t i = 0; i < count; i++)
        guest->seen[requests[i].cid >> 3] = 0;
    return made;
}

/* --- completion */

static int post(const ondie_guest *guest, ondie_guest_queue *queue, uint64_t low, uint64_t high) {
    uint64_t address = queue->base + (uint64_t)queue->tail * COMPLETION_BYTES;
    const ondie_guest_region *region = region_at(guest, address);
    if (!region || !region->memory || !region->writable ||
        region->last - address < COMPLETION_BYTES - 1)
        return 0;
    uint8_t *place = region->memory + (address - region->first);
    high |= (uint64_t)queue->phase << 48;
    *(volatile uint64_t *)place = low;
    atomic_store_explicit((_Atomic uint64_t *)(place + 8), high, memory_order_release);
    if (++queue->tail == queue->entries) {
        queue->tail = 0;
        queue->phase ^= 1;
    }
    return 1;
}

int ondie_guest_post(const ondie_guest *guest, ondie_guest_queue *queue, uint64_t low,
                     uint64_t high) {
    sigjmp_buf here;
    if (sigsetjmp(here, 0)) {
        rescue = NULL;
        return 0;
    }
    rescue = &here;
    int done = post(guest, queue, low, high);
    rescue = NULL;
    return done;
}

int64_t ondie_guest_finish(ondie_guest *guest, ondie_guest_request *requests, int64_t count,
                           const int32_t *statuses, uint32_t sqid, uint32_t sqhd,
                           ondie_guest_queue *queue) {
    int64_t posted = 0;
    for (int64_t i = 0; i < count; i++) {
        ondie_guest_request *request = &requests[i];
        if (request->kind != ONDIE_GUEST_PLAIN)
            continue;
        if (request->opcode == OPCODE_READ)
            guest->reads++;
        else {
            guest->writes++;
            guest->unaligned += request->unaligned;
        }
        if (statuses[request->command]) {
            request->kind = ONDIE_GUEST_FAILED;
            continue;
        }
        if (request->opcode == OPCODE_READ &&
            !guarded_walk(guest, request, guest->area + request->data, 1)) {
            request->kind = ONDIE_GUEST_LOST;
            continue;
        }
        uint64_t high = (uint64_t)request->cid << 32 | (uint64_t)sqid << 16 | sqhd;
        if (!ondie_guest_post(guest, queue, 0, high))
            return -1;
        posted++;
    }
    return posted;
}

/* --- doorbells in memory */

static int look(_Atomic uint32_t *shadow, ondie_guest_doorbell *bells, int64_t count) {
    int changed = 0;
    for (int64_t i = 0; i < count; i++) {
        bells[i].seen = atomic_load_explicit(&shadow[bells[i].number], memory_order_acquire);
        changed |= bells[i].seen != bells[i].value;
    }
    return changed;
}

static _Atomic uint32_t *doorbell_page(const ondie_guest *guest, uint64_t address, int writable) {
    const ondie_guest_region *region = region_at(guest, address);
    if (!region || !region->memory || !(writable ? region->writable : region->readable) ||
        region->last - address < guest->page - 1)
        return NULL;
    return (_Atomic uint32_t *)(region->memory + (address - region->first));
}

int ondie_guest_doorbells(const ondie_guest *guest, uint64_t shadow, uint64_t events,
                          ondie_guest_doorbell *bells, int64_t count, int64_t spin_ns, int arm) {
    _Atomic uint32_t *values = doorbell_page(guest, shadow, 0);
    _Atomic uint32_t *wanted = doorbell_page(guest, events, 1);
    if (!values || !wanted)
        return -1;
    sigjmp_buf here;
    if (sigsetjmp(here, 0)) {
        rescue = NULL;
        return -1;
    }
    rescue = &here;
    int64_t end = spin_ns ? ondie_now() + spin_ns : 0;
    int changed = look(values, bells, count);
    while (!changed && spin_ns && ondie_now() < end)
        changed = look(values, bells, count);
    if (!changed && arm) {
        for (int64_t i = 0; i < count; i++)
            atomic_store_explicit(&wanted[bells[i].number], bells[i].event, memory_order_relaxed);
        atomic_thread_fence(memory_order_seq_cst); /* the events before the second look */
        changed = look(values, bells, count);
    }
    rescue = NULL;
    return changed;
}
