"""Outputs that are pixel arrays, drawn as small PNG pictures inside the page."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Sequence

import numpy as np


def read_picture(text: str) -> np.ndarray | None:
    """[H,W] or [H,W,3] numbers, where the text is a JSON array of such a shape (channels may also come first).

    >>> read_picture("[[0, 1], [2, 3]]").shape, read_picture("[1, 2]"), read_picture("K AE T")
    ((2, 2), None, None)
    """
    if not text.startswith("[["):
        return None
    try:
        array = np.asarray(json.loads(text), dtype=np.float64)
    except (ValueError, TypeError):
        return None
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        array = np.moveaxis(array, 0, 2)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    fits = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)
    return array if fits and array.size and np.isfinite(array).all() else None


def tile(pictures: Sequence[np.ndarray], columns: int, top: float) -> np.ndarray:
    """Pictures of one shape side by side in rows, as bytes; ``top`` is the value of full brightness.

    >>> tile([np.ones((2, 2)), np.zeros((2, 2))], columns=2, top=1.0).tolist()
    [[255, 255, 128, 0, 0], [255, 255, 128, 0, 0]]
    """
    height, width = pictures[0].shape[:2]
    lines = -(-len(pictures) // columns)
    shape = (lines * (height + 1) - 1, columns * (width + 1) - 1, *pictures[0].shape[2:])
    sheet = np.full(shape, 128, dtype=np.uint8)
    for i, picture in enumerate(pictures):
        y, x = (i // columns) * (height + 1), (i % columns) * (width + 1)
        sheet[y : y + height, x : x + width] = np.clip(np.rint(255 * picture / (top or 1.0)), 0, 255)
    return sheet


def png(pixels: np.ndarray) -> bytes:
    """[H,W] or [H,W,3] bytes as a PNG file.

    >>> png(np.zeros((1, 1), dtype=np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    height, width = pixels.shape[:2]
    kind = 2 if pixels.ndim == 3 else 0  # colour, grey
    lines = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(pixels))
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, body) for name, body in parts)


def data_uri(pixels: np.ndarray) -> str:
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode("ascii")


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
