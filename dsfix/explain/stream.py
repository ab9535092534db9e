"""Reads a log as blocks of plain UTF-8: unpacks gzip, converts UTF-16 and removes terminal escape sequences."""

from __future__ import annotations

import codecs
import gzip
import io
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Union

_BLOCK = 1 << 20  # bytes
_LONGEST_ESCAPE = 256  # bytes; anything longer is content
# colours and cursor movements; titles and links; sequences of two or three bytes
_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])")
_GZIP = b"\x1f\x8b"
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}

_Source = Union[io.BufferedReader, gzip.GzipFile]


class UnreadableLog(Exception):
    """Why a file, or the rest of it, could not be read, in a few words."""


def blocks(name: str) -> Iterator[bytes]:
    """Yields the content of a file, "-" for standard input, without escape sequences; blocks do not end at lines.
    Raises UnreadableLog: immediately, or after the readable part."""
    with ExitStack() as stack:
        try:
            source = stack.enter_context(open(name, "rb")) if name != "-" else _standard_input()
            yield from _without_escapes(_utf8(_unpacked(source)))
        except (EOFError, gzip.BadGzipFile, zlib.error):
            raise UnreadableLog("its compressed data is damaged or truncated") from None
        except OSError as error:
            raise UnreadableLog(error.strerror or str(error)) from None


def _standard_input() -> io.BufferedReader:
    if sys.stdin is None:
        raise UnreadableLog("it is closed")
    return sys.stdin.buffer  # type: ignore[return-value]


def _unpacked(file: io.BufferedReader) -> Iterator[bytes]:
    source: _Source = file
    if file.peek(len(_GZIP)).startswith(_GZIP):
        source = gzip.GzipFile(fileobj=file)
    while block := source.read1(_BLOCK):
        yield block


def _utf8(found: Iterator[bytes]) -> Iterator[bytes]:
    """Converts UTF-16 with its mark, as PowerShell writes it, to UTF-8; anything else is unchanged."""
    decoder: codecs.IncrementalDecoder | None = None
    for number, block in enumerate(found):
        if number == 0 and (encoding := _UTF16.get(block[:2])):
            decoder = codecs.getincrementaldecoder(encoding)("replace")
        yield decoder.decode(block).encode("utf-8", "replace") if decoder else block


def _without_escapes(found: Iterator[bytes]) -> Iterator[bytes]:
    pending = b""
    for each in found:
        block = pending + each
        pending = b""
        if b"\x1b" in block:
            cut = block.rfind(b"\x1b", -_LONGEST_ESCAPE)
            if cut >= 0 and not _ESCAPE.match(block, cut):  # it continues in the next block
                block, pending = block[:cut], block[cut:]
            block = _ESCAPE.sub(b"", block)
        yield block
    yield pending
