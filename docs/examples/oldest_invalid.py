"""A victim policy: of the blocks with enough invalid pages, the one that was filled first."""

from ondie.emu.ftl.policies import collectable, first_block, greedy


def oldest_invalid(st, unit):
    """Return the block of ``unit`` to collect; blocks below half of the valid pages come first."""
    cfg = st.cfg[0]
    best = -1
    for block in range(first_block(st, unit), first_block(st, unit) + cfg.blocks):
        if collectable(st, block) and st.valid[block] <= cfg.block_pages // 2:
            if best < 0 or st.block[block].filled < st.block[best].filled:
                best = block
    return best if best >= 0 else greedy(st, unit)
