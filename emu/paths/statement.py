"""What a path states of its own work, beside what the drives' counters tell.

Owns the records Work, Share and Pieces. Does not own what is made of them (ondie.emu.analysis).
Source: none.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """What a path did that counters do not tell: PE arithmetic, host traffic, who computes."""

    adds: int = 0
    multiplies: int = 0
    register_bits: int = 0
    pe_cipher_bits: int = 0
    """Ciphered by an engine on the die."""
    die_bus_bits: int = 0
    """Read from registers of other planes, over the bus of the die."""
    host_dram_bits: int = 0
    host_updates: bool = False
    """Does the host's CPU update (its higher power), or wait for the storage?"""


@dataclass(frozen=True)
class Share:
    """How the programs of a step fall on blocks that a path has to itself: the reservoir's."""

    planes: int
    """Of a die."""
    used: int
    """Planes that a super-page fills; the others are idle."""
    programs: tuple[float, ...]
    """Super-pages that each die programs in a step, of all devices."""
    places: tuple[int, ...]
    """Super-pages that its good blocks have."""
    rotate: int
    """Cycles after which planes change roles; 0: never, or none is idle."""
    migrate: int
    """Difference of dies' cycles at which super-pages move; 0: never."""
    turn_s: float
    """What a change of roles adds to one step, on the fullest die."""

    @property
    def mean(self) -> float:
        """Cycles that a step takes of the blocks of planes in use, on the mean over dies."""
        return sum(self.programs) / sum(self.places)

    @property
    def as_laid_out(self) -> float:
        """Cycles that a step takes of the blocks worn most, nothing levelled: those of planes in
        use of the die that programs most for its room."""
        return max(n / room for n, room in zip(self.programs, self.places, strict=True))

    @property
    def levelled(self) -> float:
        """The same with the levelling that there is, but for the difference that it allows."""
        worn = self.as_laid_out
        if self.migrate:
            worn = self.mean
        return worn * self.used / self.planes if self.rotate else worn

    @property
    def turn_steps(self) -> float:
        """Steps from one change of roles to the next, on the die that comes to it first."""
        return self.rotate / self.as_laid_out
