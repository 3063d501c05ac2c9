"""Tables of `ondie study on-die-bytes`.

Owns the tables. Does not own the results (on_die_bytes.py). Source: this project.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from ondie.emu.studies.on_die_bytes import AT_REGISTERS, PLACES, PROTECTIONS, Cell

HEADINGS = {AT_REGISTERS: "nan_comparator,\nat the registers"}
Text = Callable[[Cell], str]


def values_read(cell: Cell) -> str:
    """Return the text of a table cell: the fraction of incorrect values that the controller reads
    if no bits were inverted, or "right" if all values are correct."""
    if cell.found.right:
        return "right"
    share = 100 * cell.wrong_share
    return f"{share:.0f} % wrong" if share >= 99.5 else f"{share:.1f} % wrong"


def after_wrong_bits(cell: Cell) -> str:
    """Return the text of a table cell: the number of incorrect values that the controller reads
    after bits of the new pages were inverted, and after an update of old pages with inverted
    bits."""
    found = cell.found.after_wrong_bits, cell.found.after_wrong_sources
    return "-" if None in found else f"{found[0]}, {found[1]}"


def decoder(cell: Cell) -> str:
    """Return the text that states whether the controller's decoder fails on pages updated on a
    die."""
    return {None: "no bytes", True: "fails", False: "decodes"}[cell.found.decoder_fails]


def marked(text: str, cell: Cell) -> str:
    """Return ``text``, with the mark (!) if the results of ``cell`` differ from the prediction."""
    return text if cell.agrees else f"{text} (!)"


def matrices(cells: Sequence[Cell], title: str, text: Text) -> list[Table]:
    """Return the tables of all codes. Codes whose table cells have the same texts share one table.
    ``text``: function that returns the text of a table cell."""
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
    """Return the table of the results of the controller's decoder, by code and protection. If the
    cases of a table cell have different results, the cell states the number of cases with each
    result."""
    table = Table(
        title="Decoding by the controller: pages updated on the die (without bit errors, mark of "
        "the encoder ignored) and a conventional page (with bit errors)"
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
    """Return the tables of ``cells``, which must be in the order of on_die_bytes.cases. The mark
    (!) denotes table cells of cases whose computed results differ from the prediction."""
    bits = max(cell.wrong_bits for cell in cells)
    return [
        *matrices(cells, "Values of w, m and v after an update on the die", values_read),
        *matrices(
            cells,
            f"Number of wrong values after {bits} bit errors in the new pages, and after "
            f"{bits} bit errors in the old pages before the update",
            after_wrong_bits,
        ),
        decoders(cells),
    ]


def show(cells: Sequence[Cell], screen: Console) -> None:
    """Print the tables, the cases whose computed results differ from the prediction, and the number
    of these cases."""
    for table in tables(cells):
        screen.print(table)
        screen.print()
    apart = [cell for cell in cells if not cell.agrees]
    for cell in apart:
        screen.print(f"{cell.case}: predicted {cell.predicted}, found {cell.found}")
    screen.print(f"{len(cells)} cases computed; {len(apart)} differ from the prediction")
