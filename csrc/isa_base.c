/* Object for every processor of the architecture (x86-64: SSE2, 128-bit vectors).
 *
 * This file contains no code; the kernels are in table.c.
 * Source: this project.
 */
#define ONDIE_ISA base
#include "table.c"
