/* Owns: the object every processor of the architecture runs (x86-64: SSE2, 128-bit vectors).
 * Does not: contain code; the kernels are in table.c.
 * Source: own.
 */
#define ONDIE_ISA base
#include "table.c"
