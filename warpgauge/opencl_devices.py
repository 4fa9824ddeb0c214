"""Which OpenCL devices are there? Asked by a process of its own.

Listing devices loads every vendor's driver, and a broken one may crash or hang whoever asks. So this file is
run as a program, by `warpgauge.accelerate`: it needs the standard library alone, starts at once, and answers
one JSON document on standard output. Arguments: OpenCL libraries in order; the first that loads is asked.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

# Numbers of OpenCL's cl.h.
_ALL_TYPES = 0xFFFF_FFFF
_GPU_TYPE = 1 << 2
_DEVICE_TYPE, _DEVICE_AVAILABLE, _DEVICE_NAME = 0x1000, 0x1027, 0x102B
_PLATFORM_NAME = 0x0902
_DEVICE_NOT_FOUND = -1
_PLATFORM_NOT_FOUND = -1001
_MOST_NAME_BYTES = 65_536

_Text = dict[str, Any]


def list_devices(libraries: list[str]) -> dict[str, Any]:
    """Every device of every platform, by the first library that loads.

    Returns:
        library: The one that was asked, None if none loads; devices: platform, name, is_gpu, is_available of
        each; problems: what went wrong, in words.
    """
    problems: list[str] = []
    for name in libraries:
        try:
            library = ctypes.CDLL(name)
            for function in ("clGetPlatformIDs", "clGetDeviceIDs", "clGetPlatformInfo", "clGetDeviceInfo"):
                getattr(library, function)
        except (OSError, AttributeError) as error:
            problems.append(str(error))
            continue
        devices = _devices(library, problems)
        return {"library": name, "devices": devices, "problems": problems}
    return {"library": None, "devices": [], "problems": problems}


def _devices(library: ctypes.CDLL, problems: list[str]) -> list[_Text]:
    count = ctypes.c_uint()
    code = library.clGetPlatformIDs(0, None, ctypes.byref(count))
    if code == _PLATFORM_NOT_FOUND:
        return []
    if code:
        problems.append(f"clGetPlatformIDs answers {code}")
        return []
    platforms = (ctypes.c_void_p * count.value)()
    if count.value and (code := library.clGetPlatformIDs(count, platforms, None)):
        problems.append(f"clGetPlatformIDs answers {code}")
        return []
    found = []
    for platform in platforms:
        name = _text(library.clGetPlatformInfo, platform, _PLATFORM_NAME)
        device_type = ctypes.c_uint64(_ALL_TYPES)
        count = ctypes.c_uint()
        code = library.clGetDeviceIDs(ctypes.c_void_p(platform), device_type, 0, None, ctypes.byref(count))
        devices = (ctypes.c_void_p * count.value)()
        if not code and count.value:
            code = library.clGetDeviceIDs(ctypes.c_void_p(platform), device_type, count, devices, None)
        if code:
            if code != _DEVICE_NOT_FOUND:
                problems.append(f"platform {name}: clGetDeviceIDs answers {code}")
            continue
        for device in devices:
            found.append(
                {
                    "platform": name,
                    "name": _text(library.clGetDeviceInfo, device, _DEVICE_NAME),
                    "is_gpu": bool(_number(library, device, _DEVICE_TYPE, ctypes.c_uint64) & _GPU_TYPE),
                    "is_available": bool(_number(library, device, _DEVICE_AVAILABLE, ctypes.c_uint)),
                }
            )
    return found


def _text(function: Any, handle: int | None, what: int) -> str:
    size = ctypes.c_size_t()
    code = function(ctypes.c_void_p(handle), what, ctypes.c_size_t(0), None, ctypes.byref(size))
    if code or not 0 < size.value <= _MOST_NAME_BYTES:
        return "unnamed"
    text = ctypes.create_string_buffer(size.value)
    if function(ctypes.c_void_p(handle), what, size, text, None):
        return "unnamed"
    return text.value.decode(errors="replace").strip()


def _number(library: ctypes.CDLL, device: int | None, what: int, kind: Any) -> int:
    value = kind()
    size = ctypes.c_size_t(ctypes.sizeof(value))
    code = library.clGetDeviceInfo(ctypes.c_void_p(device), what, size, ctypes.byref(value), None)
    return 0 if code else int(value.value)


if __name__ == "__main__":
    # Drivers print what they like; the answer goes out alone.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    json.dump(list_devices(sys.argv[1:]), answer)
    answer.flush()
    # A driver's own clean-up at the end of a process may crash or hang; the answer is out.
    os._exit(0)
