"""Records of a path's work that the drives' counters do not contain, and passes over host DRAM.

Owns the records Work and Share, and the table of passes: every array that a path writes to host
DRAM or reads from it. Does not own the evaluation of the records (ondie.emu.analysis), the record
Pieces (pieces.py), or the sizes of arrays, which a path states.
Source: the data flow of each path. The accelerator computes 16-bit gradients, and the host casts
them (OptimStore, HPCA 2023). As in DeepSpeed's stage 3 optimizer (runtime/zero/stage3.py), the host
unscales gradients in place. The host casts new weights for the accelerator unless the kernel writes
a 16-bit copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ondie.emu.paths.layout.formats import MODEL_BYTES


@dataclass(frozen=True)
class HostPass:
    """Pass over arrays in host DRAM, such as "gradient cast": name, and total number of bytes that
    the pass reads and writes."""

    name: str
    n_bytes: int


@dataclass(frozen=True)
class Work:
    """Work of a path that the drives' counters do not contain, such as the arithmetic of PEs and
    the passes over host DRAM. ``host_updates`` states which processor runs the update."""

    adds: int = 0
    multiplies: int = 0
    register_bits: int = 0
    pe_cipher_bits: int = 0
    """Number of bits that an engine on the die encrypts or decrypts."""
    die_bus_bits: int = 0
    """Number of bits that PEs read from the registers of other planes, over the bus of the die."""
    host_dram: tuple[HostPass, ...] = ()
    """Passes over host DRAM, in the order of the step."""
    host_updates: bool = False
    """True if the host CPU updates the weights; False if processors in the drives update them."""
    average_power: bool = False
    """True if the configured power of the busy host is an average over whole steps. This power is
    then charged for all time outside forward and backward, including time in which the CPU waits.
    """

    @property
    def host_dram_bytes(self) -> int:
        """Number of bytes of all passes over host DRAM."""
        return sum(part.n_bytes for part in self.host_dram)


@dataclass(frozen=True)
class Share:
    """Distribution of the page programs of a step over the blocks of the reservoir. Only the on-die
    paths have a reservoir.

    In the fields, a cycle is a program/erase cycle of a block, and the role of a plane is the
    vector that the plane stores.
    """

    planes: int
    """Number of planes in a die."""
    used: int
    """Number of planes that a super-page fills. The other planes of a die are idle."""
    programs: tuple[float, ...]
    """Mean number of super-pages that each die programs in a step, one element for each die of each
    device."""
    places: tuple[int, ...]
    """Number of super-pages that fit in the good blocks of each die's reservoir."""
    rotate: int
    """Number of P/E cycles of a block after which planes change roles; 0 if planes do not change
    roles or no plane is idle."""
    migrate: int
    """Difference of P/E cycles between dies above which super-pages move; 0 if super-pages do not
    move."""
    turn_s: float
    """Time that a rotation (change of the planes' roles) adds to one step, on the die with the most
    programs, seconds."""

    @property
    def mean(self) -> float:
        """P/E cycles per step of the blocks in the planes in use, averaged over the dies."""
        return sum(self.programs) / sum(self.places)

    @property
    def as_laid_out(self) -> float:
        """P/E cycles per step of the most worn blocks without wear leveling. These blocks are in
        the die with the most programs per super-page of capacity."""
        return max(
            programs / room for programs, room in zip(self.programs, self.places, strict=True)
        )

    @property
    def levelled(self) -> float:
        """P/E cycles per step of the most worn blocks with the configured wear leveling, if all
        leveled blocks wear equally. The wear difference that the leveling tolerates is
        neglected."""
        worn = self.as_laid_out
        if self.migrate:
            worn = self.mean
        return worn * self.used / self.planes if self.rotate else worn

    @property
    def turn_steps(self) -> float:
        """Number of steps between two changes of the planes' roles on the die with the most worn
        blocks. In these steps, the most worn blocks go through ``rotate`` P/E cycles."""
        return self.rotate / self.as_laid_out


PASSES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gradient arrives": (("model gradient",), ()),
    "gradient cast": (("gradient",), ("model gradient",)),
    "gradient departs": ((), ("gradient on drives",)),
    "gradient returns": (("gradient on drives",), ()),
    "gradient unscaled": (("gradient",), ("gradient",)),
    "states arrive": (("states on drives",), ()),
    "update": (("states", "copy"), ("states", "gradient")),
    "states depart": ((), ("states on drives",)),
    "weights arrive": (("weights",), ()),
    "weights cast": (("model",), ("weights",)),
    "weights depart": ((), ("model",)),
    "parameters arrive": (("model on drives",), ()),
    "parameters depart": ((), ("model on drives",)),
    "samples arrive": (("samples",), ()),
    "samples used": ((), ("samples",)),
    "exchange": (("exchange",), ()),
    "gradient sent again": ((), ("gradient sent again",)),
}
"""Name of a pass over host DRAM -> (arrays written to host DRAM, arrays read from it).

Arrays of the accelerator ("model") have 16-bit values. "on drives": the data that passes the link,
including padding and excluding data kept in host DRAM. "exchange": messages and sums of an
all-reduce, in both directions."""


def passes(
    names: Iterable[str], sizes: Mapping[str, int], times: Mapping[str, int] | None = None
) -> tuple[HostPass, ...]:
    """Return the passes ``names`` over host DRAM in one step, except those that move no data.
    ``sizes``: bytes of each array. ``times``: number of repetitions of a pass in the step, by name;
    1 if absent."""
    found = []
    for name in names:
        written, read = PASSES[name]
        n_bytes = sum(sizes[array] for array in (*written, *read)) * (times or {}).get(name, 1)
        if n_bytes:
            found.append(HostPass(name, n_bytes))
    return tuple(found)


def total(parts: Iterable[HostPass], times: int = 1) -> tuple[HostPass, ...]:
    """Return the passes of ``times`` steps. Passes with equal names are added up."""
    sums: dict[str, int] = {}
    for part in parts:
        sums[part.name] = sums.get(part.name, 0) + part.n_bytes * times
    return tuple(HostPass(name, n_bytes) for name, n_bytes in sums.items() if n_bytes)


def gradient_made(gradient_bytes: int) -> tuple[str, ...]:
    """Return the names of the passes that produce a gradient of ``gradient_bytes`` per parameter. A
    16-bit gradient needs no cast."""
    return ("gradient arrives",) + (("gradient cast",) if gradient_bytes != MODEL_BYTES else ())


def weights_sent(weight_bytes: int) -> tuple[str, ...]:
    """Return the names of the passes that send new weights to the accelerator. 16-bit weights need
    no cast."""
    return (("weights cast",) if weight_bytes != MODEL_BYTES else ()) + ("weights depart",)


def in_drive(
    n_params: int, gradient_bytes: int, weight_bytes: int, compressed: int | None = None
) -> tuple[HostPass, ...]:
    """Return the passes over host DRAM of a step in which processors in the drives update the
    weights.

    ``compressed``: size of the compressed gradient in bytes if the accelerator compresses it; the
    host then receives the gradient and sends it to the drives in this form.
    """
    made = gradient_made(gradient_bytes) if compressed is None else ("gradient arrives",)
    sizes = {
        "model gradient": MODEL_BYTES * n_params if compressed is None else compressed,
        "gradient": gradient_bytes * n_params,
        "gradient on drives": gradient_bytes * n_params if compressed is None else compressed,
        "weights": weight_bytes * n_params,
        "model": MODEL_BYTES * n_params,
    }
    names = (*made, "gradient departs", "weights arrive", *weights_sent(weight_bytes))
    return passes(names, sizes)


def deepspeed_step(
    n_params: int,
    gradient_bytes: int,
    weight_bytes: int,
    states: int,
    on_drives: tuple[int, int],
    copy: int = 0,
    model: tuple[int, int] | None = None,
) -> tuple[HostPass, ...]:
    """Return the passes over host DRAM of a step in which the host updates states that are on
    drives.

    ``states``: bytes of weights and states. ``on_drives``: bytes of (gradient, weights and states)
    on the drives. ``copy``: bytes of the 16-bit weights that the kernel writes, or 0 if a separate
    pass casts the new weights to 16 bits. ``model``: (bytes on the drives, number of reads per
    step) of the model's parameters, or None if they are not on the drives.
    """
    gradient, stored = on_drives
    stored_model, again = model or (0, 0)
    sizes = {
        "model gradient": MODEL_BYTES * n_params,
        "gradient": gradient_bytes * n_params,
        "gradient on drives": gradient,
        "states": states,
        "states on drives": stored,
        "weights": weight_bytes * n_params,
        "copy": copy,
        "model": MODEL_BYTES * n_params,
        "model on drives": stored_model,
    }
    sent = weights_sent(MODEL_BYTES if copy else weight_bytes)
    if model:  # to the drives; the accelerator gets them in forward and backward
        sent = (*sent[:-1], "parameters depart", "parameters arrive", "weights depart")
    names = (
        *gradient_made(gradient_bytes), "gradient departs", "states arrive", "gradient returns",
        "gradient unscaled", "update", "states depart", *sent,
    )  # fmt: skip
    times = {"parameters arrive": again, "weights depart": again} if model else {}
    return passes(names, sizes, times)
