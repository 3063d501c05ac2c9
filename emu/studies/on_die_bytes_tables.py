"""Tables of `ondie study on-die-bytes`.

Owns the tables. Does not own the cells (on_die_bytes.py). Source: none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from ondie.emu.studies.on_die_bytes import AT_REGISTERS, PLACES, PROTECTIONS, Cell

HEADINGS = {AT_REGISTERS: "nan_comparator,\nat the registers"}
Text = Callable[[Cell], str]


def values_read(cell: Cell) -> str:
    """Return the cell text for the values that the controller reads without wrong bits."""
    if cell.found.right:
        return "right"
    share = 100 * cell.wrong_share
    return f"{share:.0f} % wrong" if share >= 99.5 else f"{share:.1f} % wrong"


def after_wrong_bits(cell: Cell) -> str:
    """Return the wrong values that the controller reads of new pages with wrong bits, and of an
    update of pages with wrong bits."""
    found = cell.found.after_wrong_bits, cell.found.after_wrong_sources
    return "-" if None in found else f"{found[0]}, {found[1]}"


def decoder(cell: Cell) -> str:
    """Return whether the controller's decoder fails on pages that were updated on a die."""
    return {None: "no bytes", True: "fails", False: "decodes"}[cell.found.decoder_fails]


def marked(text: str, cell: Cell) -> str:
    """Return ``text``, with a mark if the model predicts another result."""
    return text if cell.agrees else f"{text} (!)"


def matrices(cells: Sequence[Cell], title: str, text: Text) -> list[Table]:
    """Return one table for all codes with equal texts."""
    grouped: dict[tuple[str, ...], list[str]] = {}
    for code in dict.fromkeys(cell.case.code for cell in cells):
        own = tuple(marked(text(cell), cell) for cell in cells if cell.case.code == code)
        grouped.setdefault(own, []).append(code)
    found = []
    for texts, codes in grouped.items():
        table = Table(title=f"{title}; ecc.code = {', '.join(codes)}")
        for heading in ("cipher", "randomizer"):
            table.add_column(heading)
        for protection in PROTECTIONS:
            table.add_column(HEADINGS.get(protection, protection), justify="right")
        rest = iter(texts)
        for cipher in PLACES:
            for randomiser in PLACES:
                table.add_row(cipher, randomiser, *(next(rest) for _ in PROTECTIONS))
        found.append(table)
    return found


def decoders(cells: Sequence[Cell]) -> Table:
    """Return the table of the controller's decoder, by code and protection: the common answer of
    all cases, else the number of cases with each answer."""
    table = Table(
        title="Controller decodes an updated page in spite of its record; conventional page "
        "with wrong bits"
    )
    table.add_column("ecc.code")
    for protection in PROTECTIONS:
        table.add_column(HEADINGS.get(protection, protection), justify="right")
    table.add_column("conventional page", justify="right")
    for code in dict.fromkeys(cell.case.code for cell in cells):
        own = [cell for cell in cells if cell.case.code == code]
        texts = []
        for protection in PROTECTIONS:
            said = [decoder(cell) for cell in own if cell.case.protection == protection]
            counts = {answer: said.count(answer) for answer in dict.fromkeys(said)}
            texts.append(
                said[0] if len(counts) == 1 else ", ".join(f"{n} {a}" for a, n in counts.items())
            )
        right = sum(cell.found.conventional_right for cell in own)
        texts.append("right" if right == len(own) else f"{right} of {len(own)} right")
        table.add_row(code, *texts)
    return table


def tables(cells: Sequence[Cell]) -> list[Table]:
    """Return the tables of the cells, which are in the order of on_die_bytes.cases. (!) marks cells
    in which the computed bytes disagree with the model's prediction."""
    bits = max(cell.wrong_bits for cell in cells)
    return [
        *matrices(cells, "Values of w, m and v after an update on the die", values_read),
        *matrices(
            cells,
            f"Wrong values after {bits} wrong bits in the new pages, and in the old ones before "
            "the update",
            after_wrong_bits,
        ),
        decoders(cells),
    ]


def show(cells: Sequence[Cell], screen: Console) -> None:
    """Print the tables, the cells that disagree with the model's prediction, and their number."""
    for table in tables(cells):
        screen.print(table)
        screen.print()
    apart = [cell for cell in cells if not cell.agrees]
    for cell in apart:
        screen.print(f"{cell.case}: predicted {cell.predicted}, found {cell.found}")
    screen.print(f"{len(cells)} cells, {len(apart)} differ from the model's prediction")
