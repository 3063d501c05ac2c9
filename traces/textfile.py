"""Reading of text files, optionally compressed, in pieces of whole lines, and atomic writing of
text files.

This module owns pieces() (gzip and xz by suffix) and Target (a .partial file, then fsync and
rename). It does not own the division of lines into columns (columns.py) or the formats of traces.
Source: the standard library's gzip and lzma.
"""

from __future__ import annotations

import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ondie.traces.errors import TraceError
from ondie.traces.hdf5 import reason

U8 = npt.NDArray[np.uint8]

#: Bytes of text per piece; its columns fit into the processor's caches.
PIECE = 8 << 20
#: Newlines added before and after each piece, so that 8-byte loads around a token stay inside.
BEFORE, AFTER = 24, 8

_NEWLINE, _TAB, _RETURN, _SPACE = 10, 9, 13, 32
_BINARY = {
    b"\x1f\x8b": "it is gzip; give it a name that ends in .gz",
    b"\xfd7zXZ": "it is xz; give it a name that ends in .xz",
    b"\x07tae": "it is blktrace's binary format; use the text output of blkparse",
    b"eat\x07": "it is blktrace's binary format; use the text output of blkparse",
}


def pieces(
    path: str | os.PathLike[str],
    size: int = PIECE,
    cut: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Iterator[tuple[int, U8]]:
    """Yield the text of a file in pieces of whole lines.

    A piece is (number of the first line, counted from 1; bytes). Each line ends in a newline.
    BEFORE newlines precede the lines and AFTER newlines follow them. cut: accept a last line
    without a newline, for formats whose last column reveals a truncated line. progress: callback
    that receives the fraction read. Raises TraceError if the file cannot be read, is empty or is
    not text, and, unless `cut` is True, if the last line has no newline.
    """
    path = Path(path)
    if path.is_dir():
        raise TraceError(f"{path}: is a folder; must be a file")
    line, rest = 1, b""
    try:
        with open(path, "rb") as raw:
            total = os.fstat(raw.fileno()).st_size
            opener: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
            file: IO[bytes] = opener[path.suffix](raw) if path.suffix in opener else raw
            while block := file.read(size):
                if progress is not None:
                    progress(raw.tell() / total)
                if line == 1 and not rest:
                    _check_kind(path, block)
                end = block.rfind(b"\n") + 1
                if not end:
                    rest += block
                    if len(rest) > size:
                        raise TraceError(
                            f"{path}: line {line}: is longer than {size} bytes, so the file is not "
                            "text; give a text file"
                        )
                    continue
                text = _padded(rest + block[:end])
                rest = block[end:]
                yield line, _checked(path, line, text)
                line += int(np.count_nonzero(text == _NEWLINE)) - BEFORE - AFTER
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file") from None
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise TraceError(
            f"{path}: the compressed data is truncated or damaged: {reason(error)}"
        ) from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {reason(error)}") from None
    if rest:
        text = _checked(path, line, _padded(rest + b"\n"))
        if not cut:
            shown = rest[-40:].decode("utf-8", "replace")
            raise TraceError(
                f"{path}: line {line}: the file ends in {shown!r} without a newline, so it may be "
                "cut off; add a newline if the line is complete"
            )
        yield line, text
    elif line == 1:
        raise TraceError(f"{path}: is empty; must have one line per request")


def _check_kind(path: Path, block: bytes) -> None:
    """Raise TraceError if the first bytes of a file are those of a known binary format."""
    for magic, words in _BINARY.items():
        if block.startswith(magic):
            raise TraceError(f"{path}: not text: {words}")


def _padded(lines: bytes) -> U8:
    """Return the text with BEFORE newlines before and AFTER newlines after it."""
    text = np.empty(BEFORE + len(lines) + AFTER, np.uint8)
    text[:BEFORE] = text[-AFTER:] = _NEWLINE
    text[BEFORE:-AFTER] = np.frombuffer(lines, np.uint8)
    return text


def _checked(path: Path, line: int, text: U8) -> U8:
    """Check a piece of text and return it.

    Raises TraceError for control characters other than tabs and line ends.
    """
    known = sum(int(np.count_nonzero(text == c)) for c in (_NEWLINE, _TAB, _RETURN))
    if int(np.count_nonzero(text < _SPACE)) != known:
        others = (text < _SPACE) & (text != _NEWLINE) & (text != _TAB) & (text != _RETURN)
        at = int(np.flatnonzero(others)[0])
        line += int(np.count_nonzero(text[BEFORE:at] == _NEWLINE))
        raise TraceError(
            f"{path}: line {line}: not text: it contains the byte 0x{int(text[at]):02x}"
        )
    return text


def check_target(path: str | os.PathLike[str]) -> Path:
    """Check the path of an output file and return it.

    Raises TraceError if the path is a folder, or a device or a FIFO, which the finished file would
    replace, or if its folder does not exist.
    """
    target = Path(path)
    if target.is_dir():
        raise TraceError(f"{target}: is a folder; must be a file")
    if target.exists() and not target.is_file():
        raise TraceError(f"{target}: is a device or a FIFO; must be a file")
    if not target.parent.is_dir():
        raise TraceError(f"{target}: its folder {target.parent} does not exist")
    return target


class Target:
    """A text file that is written in parts; the suffix of its name selects the compression.

    Use it as a context manager. The file exists only after finish(). Leaving the context without
    finish(), for example because of an error or an interrupt, removes the partial file
    `path`.PID.partial.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = check_target(path)
        self.partial = Path(f"{self.path}.{os.getpid()}.partial")
        try:
            self._raw: IO[bytes] | None = open(self.partial, "wb")
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be written: {reason(error)}") from None
        self._file: Any = self._raw
        if self.path.suffix == ".gz":  # no name and no time, so that equal traces give equal files
            self._file = gzip.GzipFile("", "wb", 6, self._raw, mtime=0)
        elif self.path.suffix == ".xz":
            self._file = lzma.LZMAFile(self._raw, "wb")

    def __enter__(self) -> Target:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._discard()

    def write(self, text: str) -> None:
        """Append text to the file. Raises TraceError if it cannot be written."""
        try:
            self._file.write(text.encode())
        except OSError as error:
            self._discard()
            raise TraceError(f"{self.path}: cannot be written: {reason(error)}") from None

    def finish(self) -> None:
        """Flush the partial file to disk and rename it to the name of the finished file. Raises
        TraceError if this fails."""
        assert self._raw is not None
        try:
            if self._file is not self._raw:
                self._file.close()
            self._raw.flush()
            os.fsync(self._raw.fileno())
            self._raw.close()
            self._raw = None
            os.replace(self.partial, self.path)
            self._sync_folder()
        except OSError as error:
            self._discard()
            raise TraceError(f"{self.path}: cannot be written: {reason(error)}") from None

    def _discard(self) -> None:
        if self._raw is not None:
            self._raw.close()
            self._raw = None
        self.partial.unlink(missing_ok=True)

    def _sync_folder(self) -> None:
        """Make the rename of a file durable, on systems that can open folders."""
        handle = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
