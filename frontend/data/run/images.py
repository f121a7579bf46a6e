"""Find the size at which browsers would decode an image, from its first bytes.

A PNG of a few kilobytes may have billions of pixels, and an SVG may repeat its shapes without
limit. Such files are not sent for display. Nothing is decoded here.
"""

from __future__ import annotations

import base64
import itertools
import math
import os
import re
import struct
from typing import BinaryIO
from xml.parsers import expat

#: The number of pixels that a browser stores in 200 MB of memory.
MAX_PIXELS = 50_000_000
#: Maximum size of a JPEG's data before its dimensions: profiles and previews.
_HEAD_BYTES = 256 * 1024
_SVG_BYTES = 8 * 2**20
#: Maximum number of elements of an SVG after resolving its references.
_MAX_ELEMENTS = 200_000

#: Markers of JPEG frames, for all kinds of compression (ITU-T T.81, table B.1).
_JPEG_SIZES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_TARGET = re.compile(r"\s*#([^\"')]*)|.*?url\(\s*[\"']?#([^\"')]*)", re.DOTALL)
_RASTER = re.compile(r"\s*data:image/(?:png|jpe?g|gif|webp);base64,", re.IGNORECASE)


def too_large(file: BinaryIO, media_type: str) -> str:
    """Return why an image must not be shown; "" if it may, or if the file is not an image.

    Afterwards, the file is at its beginning.
    """
    try:
        if media_type == "image/svg+xml":
            return _too_large_svg(file)
        if not media_type.startswith("image/"):
            return ""
        size = pixel_size(file.read(_HEAD_BYTES))
    finally:
        file.seek(0)
    if size is None:  # browsers also decode other formats under these names
        return "Not shown: it does not begin as a PNG, JPEG, GIF or WebP image of known size"
    if math.prod(size) <= MAX_PIXELS:
        return ""
    return (
        f"Not shown: the image has {size[0]:,} × {size[1]:,} pixels, "
        f"more than {MAX_PIXELS / 1e6:g} million"
    )


def pixel_size(head: bytes) -> tuple[int, int] | None:
    """Return width and height of an image with these first bytes; None if unknown.

    Browsers detect formats by the first bytes, not by the name.
    """
    try:
        if head.startswith(b"\x89PNG\r\n\x1a\n"):
            width, height = struct.unpack_from(">II", head, 16)
        elif head.startswith((b"GIF87a", b"GIF89a")):
            width, height = struct.unpack_from("<HH", head, 6)
        elif head.startswith(b"\xff\xd8"):
            return _jpeg_size(head)
        elif head[:4] == b"RIFF" and head[8:12] == b"WEBP":
            return _webp_size(head)
        else:
            return None
    except struct.error:  # truncated within its header
        return None
    return width, height


def _jpeg_size(head: bytes) -> tuple[int, int] | None:
    place, sizes = 2, []
    while place + 4 <= len(head):
        if head[place] != 0xFF:
            place += 1
            continue
        marker = head[place + 1]
        if marker in (0x00, 0x01, 0xFF) or 0xD0 <= marker <= 0xD9:
            place += 1 if marker == 0xFF else 2
            continue
        (length,) = struct.unpack_from(">H", head, place + 2)
        if marker in _JPEG_SIZES:
            height, width = struct.unpack_from(">HH", head, place + 5)
            sizes.append((width, height))
        place += 2 + length
    return max(sizes, key=math.prod, default=None)


def _webp_size(head: bytes) -> tuple[int, int] | None:
    kind = head[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(head[at : at + 3], "little") + 1 for at in (24, 27))
    elif kind == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 ":
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", head, 26))
    else:
        return None
    return width, height


def _too_large_svg(file: BinaryIO) -> str:
    size = os.fstat(file.fileno()).st_size
    if size > _SVG_BYTES:
        return f"Not shown: the SVG has {size / 1e6:.1f} MB, more than {_SVG_BYTES / 1e6:.1f} MB"
    drawing = _Svg()
    try:
        # In one call: with a token split over calls, parsing takes quadratic time.
        drawing.parser.Parse(file.read(_SVG_BYTES), True)
    except expat.ExpatError:
        pass  # browsers show the part before an error
    if drawing.has_entities:
        return "Not shown: the SVG defines entities of its own"
    if drawing.expands_too_far():
        return f"Not shown: the SVG draws more than {_MAX_ELEMENTS:,} elements"
    if drawing.pixels > MAX_PIXELS:
        return (
            "Not shown: the images in the SVG have an unknown size, "
            f"or more than {MAX_PIXELS / 1e6:g} million pixels"
        )
    return ""


def embedded_pixels(address: str) -> float:
    """Return the number of pixels of an image in a ``data:`` URL; infinite if unknown."""
    if (begin := _RASTER.match(address)) is None:
        return math.inf
    head = "".join(address[begin.end() : begin.end() + 2 * _HEAD_BYTES].split())
    try:
        size = pixel_size(base64.b64decode(head[: len(head) // 4 * 4]))
    except ValueError:
        return math.inf
    return math.inf if size is None else math.prod(size)


class _Svg:
    """Counts the elements that a browser draws for an SVG."""

    def __init__(self) -> None:
        self.has_entities = False
        self.pixels = 0.0
        self._targets: list[list[str]] = []  # for each element, in the order of the file
        self._ends: dict[int, int] = {}
        self._by_id: dict[str, int] = {}
        self._opened: list[int] = []
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._begin
        self.parser.EndElementHandler = self._end
        self.parser.EntityDeclHandler = self._entity

    def expands_too_far(self) -> bool:
        """Return True if it has too many elements after resolving references, or a cycle."""
        count, waiting = 0, [(0, len(self._targets))]
        while waiting:
            first, end = waiting.pop()
            count += end - first
            if count > _MAX_ELEMENTS:
                return True
            targets = itertools.chain.from_iterable(self._targets[first:end])
            places = filter(None, map(self._by_id.get, targets))
            waiting += ((place, self._ends.get(place, len(self._targets))) for place in places)
        return False

    def _begin(self, _: str, attributes: dict[str, str]) -> None:
        targets = []
        for name, value in attributes.items():
            if name == "id":
                self._by_id.setdefault(value, len(self._targets))
            elif (at := value[:100].lower().find("data:")) >= 0:
                self.pixels += embedded_pixels(value[at:])
            elif "#" in value and (found := _TARGET.match(value)) is not None:
                targets.append(found[1] or found[2])
        self._opened.append(len(self._targets))
        self._targets.append(targets)

    def _end(self, _: str) -> None:
        self._ends[self._opened.pop()] = len(self._targets)

    def _entity(self, *_: object) -> None:
        self.has_entities = True
        raise expat.ExpatError
