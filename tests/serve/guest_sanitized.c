/* Random queue entries, data pointers, queues and doorbells for csrc/guest.c, under AddressSanitizer
 * and UndefinedBehaviorSanitizer, which end the program at an access outside of a region.
 *
 * This file owns the inputs: a guest of few regions, each an allocation of its own, one of which has
 * shrunk. It does not own what must hold of the results, but that completions are no more than
 * commands. Source: own. Arguments: seed, rounds. Prints how many commands were plain, had failed,
 * lost their memory, and how many completions were posted.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ondie.h"

enum { PAGE = 4096, REGIONS = 4, SHRUNK = 3, COUNT = 24, AREA = 1 << 16 };

static uint64_t state;

static uint64_t draw(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 11) % below;
}

static ondie_guest_region regions[REGIONS];

/* An address: in or just outside of a region, mostly at a page. */
static uint64_t address(void) {
    const ondie_guest_region *region = &regions[draw(REGIONS)];
    uint64_t at = region->first + PAGE * draw((region->last - region->first) / PAGE + 2);
    if (draw(4) == 0) at += 4 * draw(PAGE / 4);
    return draw(64) ? at : draw(2) ? at - 1 - draw(8) : UINT64_MAX - draw(PAGE);
}

/* Pages of all regions but the last follow each other without a gap now and then. */
static void build(void) {
    uint64_t next = PAGE * draw(4);
    for (int i = 0; i < REGIONS; i++) {
        uint64_t pages = 1 + draw(4), size = pages * PAGE;
        regions[i] = (ondie_guest_region){.first = next, .last = next + size - 1,
                                          .readable = draw(8) != 0, .writable = draw(8) != 0};
        if (i == SHRUNK) {
            int fd = memfd_create("guest", 0);
            if (fd < 0 || ftruncate(fd, (off_t)size)) exit(3);
            regions[i].memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (regions[i].memory == MAP_FAILED || ftruncate(fd, (off_t)(PAGE * draw(pages + 1))))
                exit(3);
            close(fd);
        } else {
            regions[i].memory = malloc(size);
            uint64_t *words = (uint64_t *)regions[i].memory;
            for (uint64_t at = 0; at < size / 8; at++)
                words[at] = draw(16) ? PAGE * draw(24) : draw(1 << 20);
        }
        next += size + PAGE * draw(2);
    }
    if (draw(8) == 0) { /* the end of the address space */
        uint64_t size = regions[2].last - regions[2].first;
        munmap(regions[SHRUNK].memory, regions[SHRUNK].last - regions[SHRUNK].first + 1);
        regions[SHRUNK] = (ondie_guest_region){.first = UINT64_MAX - size, .last = UINT64_MAX,
                                               .memory = malloc(size + 1), .readable = 1,
                                               .writable = 1};
        memset(regions[SHRUNK].memory, 0, size + 1);
    }
}

static void entry_of(uint8_t *entry) {
    for (int at = 0; at < 64; at += 8) {
        uint64_t word = draw(8) ? 0 : draw(UINT64_MAX);
        memcpy(entry + at, &word, 8);
    }
    uint64_t prp1 = address(), prp2 = address(), slba = draw(8) ? draw(80) : draw(UINT64_MAX);
    uint16_t cid = (uint16_t)draw(1 << draw(17));
    uint32_t last = (uint32_t)draw(draw(4) ? 16 : 1 << 16) | (uint32_t)(draw(8) == 0) << 30;
    uint32_t nsid = (uint32_t)draw(draw(8) ? 3 : 1 << 20);
    entry[0] = (uint8_t)(draw(8) ? 1 + draw(2) : draw(256));
    entry[1] = draw(16) ? 0 : (uint8_t)draw(256);
    memcpy(entry + 2, &cid, 2);
    memcpy(entry + 4, &nsid, 4);
    memcpy(entry + 24, &prp1, 8);
    memcpy(entry + 32, &prp2, 8);
    memcpy(entry + 40, &slba, 8);
    memcpy(entry + 48, &last, 4);
}

int main(int count, char **words) {
    if (count != 3) return 2;
    state = strtoull(words[1], NULL, 10) * 0x9E3779B97F4A7C15u + 1;
    long rounds = atol(words[2]);
    static ondie_guest_space spaces[3];
    ondie_guest *guest = calloc(1, sizeof *guest);
    uint8_t *entries = malloc(64 * COUNT);
    ondie_guest_request *requests = malloc(COUNT * sizeof *requests);
    ondie_command *commands = malloc(COUNT * sizeof *commands);
    int32_t *statuses = malloc(COUNT * sizeof *statuses);
    uint64_t plain = 0, failed = 0, lost = 0, completed = 0;
    ondie_guest_watch();
    for (long round = 0; round < rounds; round++) {
        build();
        for (int i = 1; i < 3; i++)
            spaces[i] = (ondie_guest_space){.first = (int64_t)draw(1 << 20) * 512,
                                            .blocks = draw(8) ? 64 : 0,
                                            .block_bytes = 512u << 3 * draw(2),
                                            .writable = draw(4) != 0};
        uint64_t left = PAGE * (1 + draw(AREA / PAGE));
        *guest = (ondie_guest){.regions = regions, .count = REGIONS, .spaces = spaces, .nsids = 2,
                               .page = PAGE, .transfer = 1 << 15, .unit = PAGE, .read = 0,
                               .write = 1, .through = (int32_t)draw(2), .area = malloc(left),
                               .area_bytes = left};
        for (int i = 0; i < COUNT; i++) entry_of(entries + 64 * i);
        int fast = draw(16) != 0;
        int64_t made = ondie_guest_decode(guest, entries, COUNT, fast, requests, commands, 0);
        for (int i = 0; i < COUNT; i++) statuses[i] = draw(8) ? 0 : 0x281;
        uint32_t size = 2 + (uint32_t)draw(300);
        ondie_guest_queue queue = {.base = address(), .entries = size,
                                   .tail = (uint32_t)draw(size), .phase = (uint32_t)draw(2)};
        if (queue.base % PAGE) queue.base -= queue.base % PAGE; /* as the controller demands */
        int64_t posted = ondie_guest_finish(guest, requests, COUNT, statuses, 1, 7, &queue);
        if (made > COUNT || posted > made || queue.tail >= size) return 4;
        for (int i = 0; i < COUNT; i++) {
            plain += requests[i].kind == ONDIE_GUEST_PLAIN;
            failed += requests[i].kind == ONDIE_GUEST_FAILED;
            lost += requests[i].kind == ONDIE_GUEST_LOST;
        }
        completed += posted > 0 ? (uint64_t)posted : 0;
        uint64_t bytes = 1 + draw(left);
        ondie_guest_copy(guest, address(), draw(4) ? guest->area : NULL, bytes, (int)draw(2));
        ondie_guest_doorbell bells[4];
        for (int i = 0; i < 4; i++)
            bells[i] = (ondie_guest_doorbell){.number = (uint32_t)draw(PAGE / 4),
                                              .value = (uint32_t)draw(8)};
        uint64_t shadow = address() & -(uint64_t)PAGE, events = address() & -(uint64_t)PAGE;
        ondie_guest_doorbells(guest, shadow, events, bells, 4, 0, (int)draw(2));
        free(guest->area);
        for (int i = 0; i < REGIONS; i++) {
            if (i == SHRUNK && regions[i].last != UINT64_MAX)
                munmap(regions[i].memory, regions[i].last - regions[i].first + 1);
            else
                free(regions[i].memory);
        }
    }
    printf("%lu %lu %lu %lu\n", plain, failed, lost, completed);
    free(entries), free(requests), free(commands), free(statuses), free(guest);
    return 0;
}
