"""Reader for the XML of MQSim's files: elements with text and line numbers.

Owns the reading of a file into Elements, and the rejection of other XML constructs. Does not own
the meaning of an element (ssdconfig.py, workload_xml.py).
Source: XML 1.0; expat, as provided by the standard library.

MQSim's reader skips attributes, comments and unknown items. This reader rejects attributes other
than those of namespaces. It also rejects a document type, which could declare entities that expand
to gigabytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from ondie.emu.units import InputError, nearest, quoted

MOST_BYTES = 16 << 20  # MQSim's own files have some 4 KB; a workload of many scenarios 1 MB
MOST_DEPTH = 16  # MQSim's own files go 4 deep
_INTERNAL = "USE_INTERNAL_PARAMS"
_NAMESPACES = ("xmlns", "xmlns:", "xsi:", "xsd:", "xml:")


@dataclass
class Element:
    """An element of an XML document.

    ``line``: number of the line at which the element starts. ``text``: text without surrounding
    blanks.
    """

    name: str
    line: int
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def only(self, name: str, where: str) -> Element:
        """Return the only child with this name.

        Raises InputError if there is no such child, or more than one.
        """
        found = [child for child in self.children if child.name == name]
        if len(found) == 1:
            return found[0]
        if found:
            raise InputError(f"{where}: line {found[1].line}: {name} appears twice; give it once")
        names = [child.name for child in self.children]
        near = nearest(name, names)
        hint = f", but has {near}" if near else ""
        raise InputError(f"{where}: line {self.line}: {self.name} has no {name}{hint}")


def read_document(path: str | os.PathLike[str], root: str) -> Element:
    """Return the root element of a file, which must be named ``root``.

    Raises InputError if the file cannot be read, is not XML, or has another root, a document type,
    attributes, or text next to elements; the message states the file and line number.
    """
    where = os.fspath(path)
    data = _bytes(where)
    if data.strip() == _INTERNAL.encode():
        raise InputError(
            f"{where}: contains only {_INTERNAL}, with which MQSim uses its defaults; list the "
            "parameters in the file"
        )
    tree = _Tree(where)
    try:
        tree.parser.Parse(data, True)
    except expat.ExpatError as error:
        words = expat.errors.messages[error.code]
        raise InputError(
            f"{where}: line {error.lineno}, column {error.offset + 1}: the file is not well-formed "
            f"XML: {words}"
        ) from None
    except LookupError as error:
        raise InputError(f"{where}: line 1: {error}; use UTF-8") from None
    assert tree.root is not None
    if tree.root.name != root:
        raise InputError(
            f"{where}: line {tree.root.line}: the root element is {quoted(tree.root.name)}; "
            f"use {root}"
        )
    return tree.root


def _bytes(where: str) -> bytes:
    if os.path.isdir(where):
        raise InputError(f"{where}: is a folder; give a file")
    try:
        with open(where, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{where}: no such file") from None
    except OSError as error:
        raise InputError(f"{where}: cannot be read: {error.strerror}") from None
    except ValueError:  # a NUL in the name
        raise InputError(
            f"{quoted(where)}: has a character that a file name cannot have; give another name"
        ) from None
    if len(data) > MOST_BYTES:
        raise InputError(
            f"{where}: is larger than {MOST_BYTES} bytes; give one of MQSim's XML files"
        )
    if not data.strip():
        raise InputError(f"{where}: is empty; give one of MQSim's XML files")
    return data


class _Tree:
    """Builder of a tree of Elements from the events of the parser expat."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.root: Element | None = None
        self.open: list[Element] = []
        self.pieces: list[list[str]] = []
        self.parser = expat.ParserCreate()
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._data

    def _bad(self, what: str) -> InputError:
        return InputError(f"{self.where}: line {self.parser.CurrentLineNumber}: {what}")

    def _doctype(self, name: str, system: str | None, public: str | None, subset: int) -> None:
        raise self._bad("a document type (DOCTYPE), which MQSim's files do not have; remove it")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        for attribute in attributes:
            if attribute != _NAMESPACES[0] and not attribute.startswith(_NAMESPACES[1:]):
                raise self._bad(
                    f"{name} has an attribute {quoted(attribute)}, which MQSim would skip; "
                    "use an element"
                )
        if len(self.open) == MOST_DEPTH:
            raise self._bad(f"{name} is nested more than {MOST_DEPTH} elements deep")
        element = Element(name, self.parser.CurrentLineNumber)
        if self.open:
            self.open[-1].children.append(element)
        else:
            self.root = element
        self.open.append(element)
        self.pieces.append([])

    def _data(self, text: str) -> None:
        self.pieces[-1].append(text)

    def _end(self, name: str) -> None:
        element = self.open.pop()
        element.text = "".join(self.pieces.pop()).strip()
        if element.text and element.children:
            raise self._bad(f"{name} has the text {quoted(element.text)} next to its elements")


def leaves(element: Element, where: str, folders: tuple[str, ...] = ()) -> Iterator[Element]:
    """Yield the children of ``element`` that contain a value, except children named in ``folders``.

    Raises InputError, whose message states the file ``where`` and the line, if any other child
    contains elements.
    """
    for child in element.children:
        if child.name in folders:
            continue
        if child.children:
            raise InputError(
                f"{where}: line {child.line}: {child.name} contains elements; give a value"
            )
        yield child
