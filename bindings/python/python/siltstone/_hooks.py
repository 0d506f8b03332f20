"""The answers of compaction filters, and the end of all hooks before that of the interpreter.

The engine calls hooks on threads that Python does not know and does not wait for. A thread that asks for Python while the
interpreter ends never gets it. So hooks end first: calls that run are awaited, and later ones are refused, which
fails the job and loses nothing.
"""

from __future__ import annotations

import atexit
import enum
import os
import time

from . import _siltstone

#: The seconds in which a call of a hook may end by itself, and then by an exception.
_WAIT_SECONDS = 5.0
_RAISE_SECONDS = 1.0
_PARK_SECONDS = 0.1


class Decision(enum.Enum):
    """The answer of a compaction filter about an entry; bytes instead of it are the new value."""

    #: The entry stays.
    KEEP = "keep"
    #: The entry is deleted.
    REMOVE = "remove"


def _have_ended(seconds: float) -> bool:
    limit = time.monotonic() + seconds
    while _siltstone.hooks_under_way() > 0:
        if time.monotonic() > limit:
            return False
        time.sleep(0.001)
    return True


class _Parked(BaseException):
    """Keeps the thread in which it is raised, outside of Python: also a hook that catches every exception."""

    def __init__(self) -> None:
        while True:
            time.sleep(1 << 20)


def _raise_in_hooks(exception: type[BaseException]) -> None:
    try:
        import ctypes
    except ImportError:
        return
    for thread in _siltstone.hook_threads():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(exception))


def _end_hooks() -> None:
    _siltstone.refuse_hooks()
    if not _have_ended(_WAIT_SECONDS):
        # A loop of Python ends by it. What waits outside of Python stays there, and the process ends without it.
        _raise_in_hooks(SystemExit)
        if not _have_ended(_RAISE_SECONDS):
            _raise_in_hooks(_Parked)
            time.sleep(_PARK_SECONDS)


atexit.register(_end_hooks)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_siltstone.forget_hooks)
