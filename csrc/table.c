/* List of the kernel sources, and the function table of one instruction set.
 *
 * This file does not select the instruction set (isa_*.c) or the table (dispatch.c).
 * Source: this project.
 */
#include "grad.c"
#include "ldpc.c"
#include "limit.c"
#include "update.c"

const ondie_table FN(ondie_table) = {
    .update = FN(updates),
    .accumulate = FN(accumulate),
    .scale = FN(scale),
    .unscale = FN(unscale),
    .squares = FN(squares),
    .to_fp16 = FN(to_fp16),
    .to_bf16 = FN(to_bf16),
    .from_fp16 = FN(from_fp16),
    .from_bf16 = FN(from_bf16),
    .limit = FN(limit),
    .limit28 = FN(limit28),
    .limit20 = FN(limit20),
    .limit12 = FN(limit12),
    .ldpc_memory = FN(ldpc_memory),
    .ldpc_encode = FN(ldpc_encode),
    .ldpc_decode = FN(ldpc_decode),
};
