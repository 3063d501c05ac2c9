/* Bytes of a drive: applies the engine's log of moved bytes to the pages on flash, to the data
 * cache, and to the memory of requests and plans.
 *
 * This file owns the copies and checksums. It does not own the log (engine/core/payload_log.py) or
 * the memory of pages (nand/page_store.py, nand/segment_files.py). Source: NAND spare areas as FTLs
 * use them.
 *
 * The pages may be files that are mapped into memory. What is stored there survives the end of the
 * process, at whatever instruction it is killed. So the stores of a program have an order: the page
 * is marked as torn, then its bytes and its out-of-band data change, then it is marked as
 * programmed. A barrier for the compiler keeps this order; the processor makes the stores of one
 * thread visible as if they had been executed in order.
 */
#include <stdatomic.h>
#include <string.h>

#include "ondie.h"
#include "past_caches.h"

enum { SECTOR = 512 };

typedef struct {
    uint8_t *data;
    ondie_spare *spare;
} page;

/* Return the place of physical page `ppn`; data is null if its segment is not open. */
static page page_at(const ondie_payload *p, int64_t ppn) {
    const int64_t segment = ppn / p->segment_pages, at = ppn % p->segment_pages;
    page found = {p->pages[segment], p->spares[segment]};
    if (found.data) {
        found.data += at * p->page_bytes;
        found.spare += at;
    }
    return found;
}

/* Copy the selected sectors of the bytes from `start` to `end` of a page. */
static void copy(uint8_t *to, const uint8_t *from, int64_t start, int64_t end, int64_t sectors) {
    if (sectors == -1) {
        memcpy(to + start, from + start, (size_t)(end - start));
        return;
    }
    for (int64_t at = start; at < end; at += SECTOR)
        if (sectors >> at / SECTOR & 1) memcpy(to + at, from + at, SECTOR);
}

/* Copy as above from a page on flash; sectors that hold no data are zeros, whatever the cells read. */
static void copy_held(uint8_t *to, page from, int64_t start, int64_t end, int64_t sectors) {
    const int64_t held = from.spare->sectors;
    if (held == -1) {
        copy(to, from.data, start, end, sectors);
        return;
    }
    for (int64_t at = start; at < end; at += SECTOR) {
        if (!(sectors >> at / SECTOR & 1)) continue;
        if (held >> at / SECTOR & 1)
            memcpy(to + at, from.data + at, SECTOR);
        else
            memset(to + at, 0, SECTOR);
    }
}

/* The bytes of logical page `lpn` that a request or plan row moves: from `start` to `end` of the
 * page.
 */
typedef struct {
    int64_t start, end;
    uint8_t *host; /* where byte 0 of the page would be in its memory */
} part;

static part part_of(const ondie_payload *p, const ondie_record *r, int64_t lpn) {
    if (r->kind == ONDIE_OF_PLAN) {
        const part whole = {0, p->page_bytes, p->plan_memory + lpn * p->page_bytes};
        return whole;
    }
    const ondie_transfer *t =
        &p->transfers[((int64_t)r->queue << p->ring_shift) + r->row];
    const int64_t first = lpn * p->page_bytes;
    part found = {t->offset - first, t->offset + t->size - first, 0};
    if (found.start < 0) found.start = 0;
    if (found.end > p->page_bytes) found.end = p->page_bytes;
    if (t->data && found.end > found.start) found.host = t->data - (t->offset - first);
    return found;
}

static void to_host(const ondie_payload *p, const ondie_record *r, int64_t lpn,
                    const uint8_t *from) {
    const part here = part_of(p, r, lpn);
    if (here.host) copy(here.host, from, here.start, here.end, r->sectors);
}

/* Copy from the memory of a request or plan row. That of a plan row then holds no data any more: a
 * value that is not read back cannot be used.
 */
static void take(const ondie_record *r, part here, uint8_t *to) {
    if (!here.host) return;
    copy(to, here.host, here.start, here.end, r->sectors);
    if (r->kind == ONDIE_OF_PLAN)
        memset(here.host + here.start, ONDIE_POISON, (size_t)(here.end - here.start));
}

/* Return whether a record names memory for its pages: that of a request, or of a plan. */
static int has_memory(const ondie_payload *p, const ondie_record *r) {
    if (r->kind == ONDIE_OF_PLAN) return r->lpn >= 0 && r->lpn + r->n <= p->plan_pages;
    return r->queue >= 0;
}

uint32_t ondie_seal(int isa, const ondie_spare *spare) {
    const uint8_t *bytes = (const uint8_t *)spare;
    const size_t first = offsetof(ondie_spare, seal), rest = offsetof(ondie_spare, sectors);
    const uint32_t crc = ondie_crc32c(isa, 0, bytes, first);
    return ondie_crc32c(isa, crc, bytes + rest, sizeof *spare - rest);
}

void ondie_seal_spares(int isa, ondie_spare *spares, int64_t count) {
    for (int64_t i = 0; i < count; i++) spares[i].seal = ondie_seal(isa, spares + i);
}

void ondie_read_spares(int isa, const ondie_spare *spares, int64_t count, uint8_t *found) {
    for (int64_t i = 0; i < count; i++) {
        const ondie_spare *spare = spares + i;
        const int torn = spare->written == ONDIE_TORN;
        if (spare->written == ONDIE_ERASED || (torn && spare->lpn == -1))
            found[i] = 0;
        else
            found[i] = ondie_seal(isa, spare) == spare->seal ? 1 : 2;
    }
}

/* Let the compiler move no store across this point. */
static void barrier(void) { atomic_signal_fence(memory_order_seq_cst); }

/* Mark an erased page as torn before its bytes change. It reads as blank until its record is
 * sealed.
 */
static void begin_program(page to) {
    to.spare->lpn = -1;
    barrier();
    to.spare->written = ONDIE_TORN;
    barrier();
}

/* Write the out-of-band data of a page whose bytes are in place, and end its program. `age`: how
 * many numbers were given since the contents left the cache, if the cache is in a file.
 */
static void write_spare(ondie_payload *p, page to, const ondie_record *r, int64_t lpn,
                        int64_t sequence, uint32_t age, uint32_t checksum) {
    ondie_spare *spare = to.spare;
    spare->lpn = lpn;
    spare->sequence = sequence;
    spare->step = ++p->programs;
    spare->sectors = r->held;
    spare->slot = age;
    spare->stream = (uint32_t)r->stream;
    spare->erases = (uint32_t)r->erases;
    spare->checksum = checksum;
    spare->seal = ondie_seal(p->isa, spare);
    barrier();
    spare->written = ONDIE_PROGRAMMED;
}

static uint32_t checksum_of(const ondie_payload *p, const uint8_t *data) {
    return ondie_crc32c(p->isa, 0, data, (size_t)p->page_bytes);
}

/* Erase the pages of a block in the planes that r->old selects (-1: all). */
static void erase(const ondie_payload *p, const ondie_record *r) {
    for (int64_t i = 0; i < r->n; i++) {
        if (r->old != -1 && !(r->old >> i / p->slots % p->planes & 1)) continue;
        const page at = page_at(p, r->ppn + i);
        if (at.data && at.spare->written != ONDIE_ERASED) at.spare->written = ONDIE_ERASED;
    }
}

/* Return ONDIE_DAMAGED if pages are checked and one of pages ppn to ppn + n - 1 is damaged. */
static int64_t verify(ondie_payload *p, int64_t ppn, int64_t n) {
    for (int64_t i = 0; p->verify && i < n; i++) {
        const page at = page_at(p, ppn + i);
        const int sealed = ondie_seal(p->isa, at.spare) == at.spare->seal;
        if (sealed && checksum_of(p, at.data) == at.spare->checksum) continue;
        p->missing = ppn + i;
        return ONDIE_DAMAGED;
    }
    return ONDIE_OK;
}

/* Fill page `to` with the old page, or zeros, where the bytes from `start` to `end` do not. */
static void start_from(const ondie_payload *p, const ondie_record *r, uint8_t *to, int64_t start,
                       int64_t end) {
    if (r->sectors == -1 && start == 0 && end == p->page_bytes) return;
    if (r->old >= 0)
        copy_held(to, page_at(p, r->old), 0, p->page_bytes, -1);
    else
        memset(to, 0, (size_t)p->page_bytes);
}

/* Return the slot of a record, whose contents are about to change: those on their way to flash are
 * kept.
 */
static uint8_t *slot_to_change(const ondie_payload *p, const ondie_record *r) {
    const int64_t at = (r->place - 1) * p->page_bytes;
    if (p->state[r->place - 1] == ONDIE_FLYING) {
        memcpy(p->flying + at, p->cached + at, (size_t)p->page_bytes);
        p->state[r->place - 1] = ONDIE_CHANGED;
    }
    return p->cached + at;
}

/* Return the contents that leave the slot of a record for flash, which then is at rest. */
static const uint8_t *landing_contents(const ondie_payload *p, const ondie_record *r) {
    const int64_t at = (r->place - 1) * p->page_bytes;
    const uint8_t *found = (p->state[r->place - 1] == ONDIE_CHANGED ? p->flying : p->cached) + at;
    p->state[r->place - 1] = ONDIE_AT_REST;
    return found;
}

uint32_t ondie_entry_seal(int isa, const ondie_entry *entry) {
    return ondie_crc32c(isa, 0, (const uint8_t *)entry, offsetof(ondie_entry, seal));
}

/* Let go of an entry of the cache file (1 + its index, or 0), whose contents are on flash or dead. */
static void leave_entry(ondie_payload *p, int64_t *entry) {
    if (*entry) p->left_entries[p->left_count++] = *entry - 1;
    *entry = 0;
}

/* Put the contents of the slot of a record, which have just changed, into a free entry of the cache
 * file; r->held: the sectors that the slot holds. The entry of the earlier contents stays whole
 * until the new one is sealed.
 */
static void save_slot(ondie_payload *p, const ondie_record *r) {
    const int64_t at = p->free_entries[--p->free_count], place = r->place - 1;
    ondie_entry *to = p->entries + at;
    uint8_t *bytes = p->entry_pages + at * p->page_bytes;
    to->seal = ~ondie_entry_seal(p->isa, to);
    barrier();
    const uint8_t *from = p->cached + place * p->page_bytes;
    const uint32_t checksum = checksum_of(p, from);
    copy_past_caches(bytes, from, (size_t)p->page_bytes);
    to->lpn = r->lpn;
    to->sequence = ++p->sequence;
    to->sectors = r->held;
    to->checksum = checksum;
    const uint32_t seal = ondie_entry_seal(p->isa, to);
    barrier();
    to->seal = seal;
    leave_entry(p, p->entry + place);
    p->entry[place] = at + 1;
}

/* Leave a page as a failed program does: it reads neither as blank nor as valid. */
static void fail_program(const ondie_payload *p, page to) {
    to.spare->lpn = 0;
    to.spare->seal = ~ondie_seal(p->isa, to.spare);
}

/* Leave a page as the first of two passes does: it reads neither as blank nor as valid, until the
 * second pass has ended.
 */
static void end_first_pass(const ondie_payload *p, page to) {
    to.spare->lpn = ONDIE_FIRST_PASS;
    to.spare->seal = ~ondie_seal(p->isa, to.spare);
}

/* Program one page. */
static int64_t program(ondie_payload *p, const ondie_record *r, int64_t i) {
    const page to = page_at(p, r->ppn + i);
    const int64_t lpn = r->lpn + (r->lpn >= 0 ? i : 0);
    const int second = to.spare->written == ONDIE_TORN && to.spare->lpn == ONDIE_FIRST_PASS;
    if (to.spare->written != ONDIE_ERASED && !second) return ONDIE_TWICE;
    if (!second) begin_program(to);
    if (p->ahead) {
        uint8_t *segment = p->pages[(r->ppn + i) / p->segment_pages];
        ondie_add_ahead(p->ahead, to.data, p->page_bytes, segment + p->segment_pages * p->page_bytes);
    }
    if (r->what == ONDIE_LOG_FIRST_PASS) {
        end_first_pass(p, to);
        return ONDIE_OK;
    }
    if (r->what == ONDIE_LOG_FAILED) {
        fail_program(p, to);
        return ONDIE_OK;
    }
    if (r->what == ONDIE_LOG_TRIM_MAP) {
        memcpy(to.data, p->trim_bits + (r->place - 1) * p->page_bytes, (size_t)p->page_bytes);
        write_spare(p, to, r, lpn, p->trim_sequence[r->place - 1], 0, checksum_of(p, to.data));
        return ONDIE_OK;
    }
    if (r->what == ONDIE_LOG_MAP_PAGE) {
        memset(to.data, 0, (size_t)p->page_bytes);
        write_spare(p, to, r, lpn, p->map_composed[r->place - 1], 0, checksum_of(p, to.data));
        return ONDIE_OK;
    }
    if (r->what == ONDIE_LOG_PADDING) {
        memset(to.data, 0, (size_t)p->page_bytes);
        write_spare(p, to, r, ONDIE_PADDING, 0, 0, checksum_of(p, to.data));
        return ONDIE_OK;
    }
    if (r->what == ONDIE_LOG_MOVE) {
        const page from = page_at(p, r->old);
        copy_past_caches(to.data, from.data, (size_t)p->page_bytes);
        /* The data are as old as they were, and a damaged page stays detectable. */
        write_spare(p, to, r, lpn, from.spare->sequence, from.spare->slot, from.spare->checksum);
        return ONDIE_OK;
    }
    uint32_t checksum;
    if (r->what == ONDIE_LOG_PROGRAM) {
        const part here = part_of(p, r, lpn);
        start_from(p, r, to.data, here.start, here.host ? here.end : here.start);
        take(r, here, to.data);
        checksum = checksum_of(p, to.data);
    } else if (r->sectors == -1) {
        const uint8_t *from = landing_contents(p, r);
        checksum = checksum_of(p, from); /* which brings the bytes to the caches for the copy */
        copy_past_caches(to.data, from, (size_t)p->page_bytes);
    } else {
        start_from(p, r, to.data, 0, p->page_bytes);
        copy(to.data, landing_contents(p, r), 0, p->page_bytes, r->sectors);
        checksum = checksum_of(p, to.data);
    }
    /* Contents that were superseded before they reached flash are older than all others. A page that
     * takes bytes of a damaged one stays damaged. */
    const int64_t sequence = r->what == ONDIE_LOG_LOST ? 0 : ++p->sequence;
    const int takes = r->old >= 0 && (page_at(p, r->old).spare->sectors & ~r->sectors) != 0;
    const uint32_t damage = takes && verify(p, r->old, 1) != ONDIE_OK ? 1 : 0;
    const int landed = p->entries && r->what != ONDIE_LOG_PROGRAM;
    uint32_t age = 0;
    if (landed && sequence) age = (uint32_t)(sequence - p->content[r->place - 1]);
    write_spare(p, to, r, lpn, sequence, age, checksum ^ damage);
    if (landed) leave_entry(p, p->leaving + r->place - 1);
    return ONDIE_OK;
}

/* Return the number of the first segment of pages ppn to ppn + n - 1 that is not open, or -1. Mark
 * those before it.
 */
static int64_t missing_segment(const ondie_payload *p, int64_t ppn, int64_t n, uint8_t mark) {
    for (int64_t s = ppn / p->segment_pages; s <= (ppn + n - 1) / p->segment_pages; s++) {
        if (!p->pages[s]) return s;
        if (p->marks) p->marks[s] |= mark;
    }
    return -1;
}

/* Return the room of a page, enum ondie_room. Memory has room for every page. */
static int room_of(const ondie_payload *p, int64_t ppn) {
    const uint8_t *room = p->room ? p->room[ppn / p->segment_pages] : 0;
    return room ? room[ppn % p->segment_pages / p->run_pages] : ONDIE_ROOM;
}

/* Return the first of the pages ppn to ppn + n - 1 without room, or -1. Stores to a page without
 * room would end the process (SIGBUS) if the file system is full.
 */
static int64_t page_without_room(const ondie_payload *p, int64_t ppn, int64_t n) {
    if (p->room)
        for (int64_t i = 0; i < n; i++)
            if (room_of(p, ppn + i) != ONDIE_ROOM) return ppn + i;
    return -1;
}

/* Return 1 if one of the pages ppn to ppn + n - 1 is not programmed. The record of a page in a hole
 * is not read: some file systems would allocate it.
 */
static int is_blank(const ondie_payload *p, int64_t ppn, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (room_of(p, ppn + i) == ONDIE_HOLE || page_at(p, ppn + i).spare->written == ONDIE_ERASED)
            return 1;
    return 0;
}

/* Return whether the pages and the memory that a record names can give or take bytes. */
static int64_t check(const ondie_payload *p, const ondie_record *r) {
    switch (r->what) {
    case ONDIE_LOG_READ:
        if (is_blank(p, r->ppn, r->n)) return ONDIE_BLANK;
        /* fall through */
    case ONDIE_LOG_ZERO:
    case ONDIE_LOG_SERVE:
    case ONDIE_LOG_STORE: return has_memory(p, r) ? ONDIE_OK : ONDIE_NO_REQUEST;
    case ONDIE_LOG_FILL: return is_blank(p, r->ppn, 1) ? ONDIE_BLANK : ONDIE_OK;
    case ONDIE_LOG_PROGRAM:
        if (!has_memory(p, r)) return ONDIE_NO_REQUEST;
        /* fall through */
    case ONDIE_LOG_MOVE:
    case ONDIE_LOG_LAND:
    case ONDIE_LOG_LOST: return r->old >= 0 && is_blank(p, r->old, 1) ? ONDIE_BLANK : ONDIE_OK;
    }
    return ONDIE_OK;
}

/* Return the segment that a record needs and that is not open, or -1. */
static int64_t needed_segment(const ondie_payload *p, const ondie_record *r) {
    int64_t missing = -1;
    switch (r->what) {
    case ONDIE_LOG_MOVE:
    case ONDIE_LOG_PROGRAM:
    case ONDIE_LOG_LAND:
    case ONDIE_LOG_LOST:
    case ONDIE_LOG_PADDING:
    case ONDIE_LOG_FAILED:
    case ONDIE_LOG_TRIM_MAP:
    case ONDIE_LOG_FIRST_PASS:
    case ONDIE_LOG_MAP_PAGE:
        if (r->old >= 0) missing = missing_segment(p, r->old, 1, ONDIE_USED);
        if (missing >= 0) return missing;
        return missing_segment(p, r->ppn, r->n, ONDIE_USED | ONDIE_CHANGED_FILE);
    case ONDIE_LOG_READ:
    case ONDIE_LOG_FILL: missing = missing_segment(p, r->ppn, r->n, ONDIE_USED);
    }
    return missing;
}

/* Apply one record. Return a status. */
static int64_t apply(ondie_payload *p, const ondie_record *r) {
    int64_t status = ONDIE_OK;
    if ((p->missing = needed_segment(p, r)) >= 0) return ONDIE_NO_SEGMENT;
    if ((status = check(p, r)) != ONDIE_OK) return status;
    switch (r->what) {
    case ONDIE_LOG_READ:
        for (int64_t i = 0; i < r->n; i++) {
            const part here = part_of(p, r, r->lpn + i);
            if (here.host)
                copy_held(here.host, page_at(p, r->ppn + i), here.start, here.end, r->sectors);
        }
        status = verify(p, r->ppn, r->n);
        break;
    case ONDIE_LOG_ZERO:
        for (int64_t i = 0; i < r->n; i++) to_host(p, r, r->lpn + i, p->zeros);
        break;
    case ONDIE_LOG_SERVE:
        to_host(p, r, r->lpn, p->cached + (r->place - 1) * p->page_bytes);
        break;
    case ONDIE_LOG_STORE:
        if (p->entry_pages && !p->free_count) return ONDIE_NO_ENTRY;
        take(r, part_of(p, r, r->lpn), slot_to_change(p, r));
        if (p->entry_pages) save_slot(p, r);
        break;
    case ONDIE_LOG_DESTAGE:
        p->state[r->place - 1] = ONDIE_FLYING;
        if (!p->entries) break;
        p->leaving[r->place - 1] = p->entry[r->place - 1];
        p->entry[r->place - 1] = 0;
        p->content[r->place - 1] = ++p->sequence;
        break;
    case ONDIE_LOG_FILL:
        copy_held(slot_to_change(p, r), page_at(p, r->ppn), 0, p->page_bytes, r->sectors);
        status = verify(p, r->ppn, 1);
        break;
    case ONDIE_LOG_MOVE:
    case ONDIE_LOG_PROGRAM:
    case ONDIE_LOG_LAND:
    case ONDIE_LOG_LOST:
    case ONDIE_LOG_PADDING:
    case ONDIE_LOG_FAILED:
    case ONDIE_LOG_TRIM_MAP:
    case ONDIE_LOG_FIRST_PASS:
    case ONDIE_LOG_MAP_PAGE:
        if ((p->missing = page_without_room(p, r->ppn, r->n)) >= 0) return ONDIE_NO_ROOM;
        for (int64_t i = 0; i < r->n && status == ONDIE_OK; i++) status = program(p, r, i);
        break;
    case ONDIE_LOG_ERASE:
        if (p->room) return ONDIE_FILE_ERASE;
        erase(p, r);
        break;
    case ONDIE_LOG_TRIM_COPY:
        p->trim_sequence[r->old] = ++p->sequence;
        if (r->place) { /* a checkpoint begins: its root says how much has been programmed */
            const int64_t reached[2] = {p->sequence, p->programs};
            memcpy(p->trim_bits + r->old * p->page_bytes + r->place, reached, sizeof reached);
        }
        break;
    case ONDIE_LOG_MAP_COPY: p->map_composed[r->place - 1] = p->programs + 1; break;
    case ONDIE_LOG_TRIM:
        if (p->entries) return ONDIE_FILE_TRIM;
        break;
    case ONDIE_LOG_DROP: break;
    default: status = ONDIE_NOT_APPLIED;
    }
    return status;
}

int64_t ondie_apply(ondie_payload *drives, const ondie_record *log, int64_t first,
                    int64_t count) {
    for (; first < count; first++) {
        ondie_payload *p = drives + log[first].dev;
        if ((p->status = (int32_t)apply(p, log + first)) != ONDIE_OK) break;
    }
    drain();
    return first;
}
