"""Large values as files of the standard library."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._siltstone import BlobSource

#: The bytes that ``readinto`` copies at once.
_PIECE_BYTES = 1 << 20


class ValueReader(io.RawIOBase):
    """A value that is read in parts, as a file. It shows the value of the moment at which it was opened.

    It has no buffer of its own: wrap it in ``io.BufferedReader`` for many small reads.
    """

    def __init__(self, blob: BlobSource) -> None:
        super().__init__()
        self._blob = blob
        self._position = 0

    @property
    def size(self) -> int:
        """The length of the value in bytes."""
        return self._blob.size

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to a position, which may be after the end; return it."""
        self._check_open()
        if whence == io.SEEK_SET:
            base = 0
        elif whence == io.SEEK_CUR:
            base = self._position
        elif whence == io.SEEK_END:
            base = self.size
        else:
            raise ValueError(f"whence is {whence}, not 0, 1 or 2")
        if base + offset < 0:
            raise ValueError(f"the position {base + offset} is before the value")
        self._position = base + offset
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        """Return up to ``size`` bytes, or all that is left."""
        self._check_open()
        left = max(self.size - self._position, 0)
        count = left if size is None or size < 0 else min(size, left)
        data = self._blob.read_at(self._position, count)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        """Return all bytes that are left."""
        return self.read()

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill a buffer; return the number of bytes, which is less only at the end of the value."""
        self._check_open()
        left = max(self.size - self._position, 0)
        with memoryview(buffer) as whole, whole.cast("B") as view:
            count = min(len(view), left)
            for start in range(0, count, _PIECE_BYTES):
                stop = min(start + _PIECE_BYTES, count)
                self._blob.read_into(self._position + start, view[start:stop])
        self._position += count
        return count

    def close(self) -> None:
        """Free what the value holds."""
        if not self.closed:
            self._blob.close()
        super().close()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")
