"""Python's side of the stand-in for the CUDA driver."""

import ctypes
from pathlib import Path


class FakeControl:
    """The stand-in's own functions: what was called, what is to fail, what was not given back."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.fake_log.restype = ctypes.c_char_p

    def calls(self) -> list[str]:
        return self._library.fake_log().decode().split()

    def fail(self, name: str, code: int) -> None:
        self._library.fake_fail(name.encode(), code)

    def device_count(self, count: int) -> None:
        self._library.fake_device_count(count)

    def leaks(self) -> int:
        return self._library.fake_leaks()
