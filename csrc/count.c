/* Program that calls one function of ondie.h once, for counting its instructions.
 *
 * The program does not count. valgrind's callgrind counts from entry to exit of counted().
 * Source: this project.
 *
 * usage: count FUNCTION VARIANT ISA N MAPS COEF...      (see instructions.py)
 * MAPS: a file with ondie_codes[2], or "-" if no state is coded.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ondie.h"

typedef struct {
    const char *function;
    int variant, isa;
    size_t n;
    float coef[16], *w, *g, *m, *v, *scale;
    double *partial;
    uint16_t *half;
    ondie_codes maps[2];
} job;

/* Run an update whose arrays are not all FP32. */
__attribute__((noinline)) static int narrow(const job *j, int op, float *a, float *b) {
    const int half = j->variant == ONDIE_FP16 || j->variant == ONDIE_BF16;
    const int coded = j->variant == ONDIE_CODES;
    return ondie_update_one(j->isa, op, j->variant, 1, j->w, half ? (void *)j->half : j->g, a, b,
                            half ? j->half + j->n : 0, coded ? j->scale : 0,
                            coded && b ? j->scale + j->n : 0, j->n, 0, j->coef,
                            coded ? j->maps : 0, 1);
}

/* Run an update with no, one or two states; unused states are null. */
static int update(const job *j, int op, float *a, float *b) {
    if (j->variant >= ONDIE_FP16) return narrow(j, op, a, b);
    return ondie_update_one(j->isa, op, j->variant, 1, j->w, j->g, a, b, 0, 0, 0, j->n, 0, j->coef, 0, 0);
}

__attribute__((noinline)) int counted(const job *j, int number) {
    int32_t found;
    switch (number) {
    case 0: return update(j, ONDIE_ADAM, j->m, j->v);
    case 1: return update(j, ONDIE_SGD, 0, 0);
    case 2: return update(j, ONDIE_MOMENTUM, j->m, 0);
    case 3: return update(j, ONDIE_NESTEROV, j->m, 0);
    case 4: return update(j, ONDIE_ADAGRAD, j->v, 0);
    case 5: return ondie_scale(j->isa, j->g, j->n, j->coef[0]);
    case 6: return ondie_unscale(j->isa, j->g, j->n, j->coef[0], &found);
    case 7: return ondie_squares(j->isa, j->g, j->n, j->partial);
    case 8: return ondie_to_fp16(j->isa, j->g, j->half, j->n);
    case 9: return ondie_from_fp16(j->isa, j->half, j->g, j->n);
    case 10: return ondie_to_bf16(j->isa, j->g, j->half, j->n);
    case 11: return ondie_from_bf16(j->isa, j->half, j->g, j->n);
    }
    return ONDIE_NO_UPDATE;
}

static const char *const functions[] = {
    "adam",    "sgd",     "momentum",  "nesterov", "adagrad",   "scale",
    "unscale", "squares", "to_fp16",   "from_fp16", "to_bf16",  "from_bf16",
};

static void *aligned(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (!p) exit(3);
    return p;
}

int main(int argc, char **argv) {
    if (argc < 6 || argc > 22) {
        fprintf(stderr, "usage: count FUNCTION VARIANT ISA N MAPS COEF...\n");
        return 2;
    }
    static job j;
    j.function = argv[1], j.variant = atoi(argv[2]), j.isa = atoi(argv[3]);
    j.n = strtoul(argv[4], 0, 10);
    if (strcmp(argv[5], "-")) {
        FILE *file = fopen(argv[5], "rb");
        if (!file || fread(j.maps, sizeof j.maps, 1, file) != 1) return 3;
        fclose(file);
    }
    for (int i = 6; i < argc; i++) j.coef[i - 6] = strtof(argv[i], 0);
    float **arrays[] = {&j.w, &j.g, &j.m, &j.v};
    for (int a = 0; a < 4; a++) {
        *arrays[a] = aligned(4 * j.n);
        for (size_t i = 0; i < j.n; i++) (*arrays[a])[i] = 0.5f + (float)(i % 7) / 8;
    }
    j.partial = aligned(8 * (j.n / ONDIE_NORM_BLOCK + 1));
    j.half = aligned(4 * j.n);
    memset(j.half, 0x3c, 4 * j.n);
    j.scale = aligned(8 * j.n);
    for (size_t i = 0; i < 2 * j.n; i++) j.scale[i] = 1.0f;
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++)
        if (!strcmp(j.function, functions[f])) return counted(&j, (int)f) == ONDIE_OK ? 0 : 4;
    fprintf(stderr, "count: unknown function %s\n", j.function);
    return 2;
}
