"""Records of a path's work that the drives' counters do not hold.

Owns the records Work and Share. Does not own their evaluation (ondie.emu.analysis), or the record
Pieces (pieces.py).
Source: none.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """Work of a path that is not in counters: PE arithmetic, host traffic, location of update."""

    adds: int = 0
    multiplies: int = 0
    register_bits: int = 0
    pe_cipher_bits: int = 0
    """Bits encrypted or decrypted by an engine on the die."""
    die_bus_bits: int = 0
    """Bits read from registers of other planes, over the bus of the die."""
    host_dram_bits: int = 0
    host_updates: bool = False
    """True if the host CPU updates (at its higher power), False if it waits for the storage."""


@dataclass(frozen=True)
class Share:
    """Distribution of the programs of a step over the reservoir, whose blocks only one path uses.

    A cycle is a program/erase cycle.
    """

    planes: int
    """Planes of a die."""
    used: int
    """Planes that a super-page fills; the others are idle."""
    programs: tuple[float, ...]
    """Super-pages that each die programs in a step, for all dies of all devices."""
    places: tuple[int, ...]
    """Super-pages in the good blocks of each die."""
    rotate: int
    """Cycles after which planes change roles; 0: never, or no plane is idle."""
    migrate: int
    """Difference of cycles between dies at which super-pages move; 0: never."""
    turn_s: float
    """Seconds that a change of roles adds to one step, on the fullest die."""

    @property
    def mean(self) -> float:
        """Cycles per step of the blocks of planes in use, mean over dies."""
        return sum(self.programs) / sum(self.places)

    @property
    def as_laid_out(self) -> float:
        """P/E cycles per step of the most worn blocks without wear leveling. They belong to the
        die with the most programs per super-page of its capacity."""
        return max(
            programs / room for programs, room in zip(self.programs, self.places, strict=True)
        )

    @property
    def levelled(self) -> float:
        """Cycles per step of the most worn blocks with the configured wear leveling, without the
        difference that it allows."""
        worn = self.as_laid_out
        if self.migrate:
            worn = self.mean
        return worn * self.used / self.planes if self.rotate else worn

    @property
    def turn_steps(self) -> float:
        """Steps between changes of roles, on the die that reaches ``rotate`` cycles first."""
        return self.rotate / self.as_laid_out
