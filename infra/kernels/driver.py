"""Load PTX and launch kernels through the CUDA driver alone: ctypes and the standard library, nothing to install.

A machine with a GPU has the driver (libcuda.so.1) and often nothing else: no toolkit, no compiler, no package.
Whatever has a writable buffer (a NumPy array, an array.array, a bytearray) can be sent and received.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

LIBRARY = "libcuda.so.1"
Size = tuple[int, int, int]

# Numbers of cuda.h that the driver's interface fixes.
_COMPUTE_CAPABILITY_MAJOR, _COMPUTE_CAPABILITY_MINOR = 75, 76
_REGISTERS, _SHARED_BYTES, _LOCAL_BYTES, _MOST_THREADS = 4, 1, 3, 0
_INFO_LOG, _INFO_LOG_BYTES, _ERROR_LOG, _ERROR_LOG_BYTES, _LOG_VERBOSE = 3, 4, 5, 6, 12
_LOG_BUFFER_BYTES = 16_384
# Bytes behind every allocation that no kernel may touch, and what they hold.
GUARD_BYTES = 256
_GUARD_VALUE = 0xA5

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_DEVICE_POINTER, _UNSIGNED, _INT = ctypes.c_uint64, ctypes.c_uint, ctypes.c_int
_FUNCTIONS: dict[str, list[Any]] = {
    "cuInit": [_UNSIGNED],
    "cuDriverGetVersion": [ctypes.POINTER(_INT)],
    "cuDeviceGetCount": [ctypes.POINTER(_INT)],
    "cuDeviceGet": [ctypes.POINTER(_INT), _INT],
    "cuDeviceGetName": [ctypes.c_char_p, _INT, _INT],
    "cuDeviceGetAttribute": [ctypes.POINTER(_INT), _INT, _INT],
    "cuDevicePrimaryCtxRetain": [ctypes.POINTER(_POINTER), _INT],
    "cuDevicePrimaryCtxRelease_v2": [_INT],
    "cuCtxSetCurrent": [_POINTER],
    "cuCtxSynchronize": [],
    "cuModuleLoadDataEx": [
        ctypes.POINTER(_POINTER),
        ctypes.c_char_p,
        _UNSIGNED,
        ctypes.POINTER(_INT),
        ctypes.POINTER(_POINTER),
    ],
    "cuModuleUnload": [_POINTER],
    "cuModuleGetFunction": [ctypes.POINTER(_POINTER), _POINTER, ctypes.c_char_p],
    "cuFuncGetAttribute": [ctypes.POINTER(_INT), _INT, _POINTER],
    "cuMemAlloc_v2": [ctypes.POINTER(_DEVICE_POINTER), _SIZE],
    "cuMemFree_v2": [_DEVICE_POINTER],
    "cuMemcpyHtoD_v2": [_DEVICE_POINTER, _POINTER, _SIZE],
    "cuMemcpyDtoH_v2": [_POINTER, _DEVICE_POINTER, _SIZE],
    "cuMemsetD8_v2": [_DEVICE_POINTER, ctypes.c_ubyte, _SIZE],
    "cuLaunchKernel": [
        _POINTER,
        *[_UNSIGNED] * 7,
        _POINTER,
        ctypes.POINTER(_POINTER),
        ctypes.POINTER(_POINTER),
    ],
    "cuEventCreate": [ctypes.POINTER(_POINTER), _UNSIGNED],
    "cuEventRecord": [_POINTER, _POINTER],
    "cuEventSynchronize": [_POINTER],
    "cuEventElapsedTime": [ctypes.POINTER(ctypes.c_float), _POINTER, _POINTER],
    "cuEventDestroy_v2": [_POINTER],
    "cuGetErrorName": [_INT, ctypes.POINTER(ctypes.c_char_p)],
    "cuGetErrorString": [_INT, ctypes.POINTER(ctypes.c_char_p)],
}


class DriverError(Exception):
    """The driver is absent, refuses a call, or a kernel wrote where it must not."""


class Driver:
    """One GPU by its primary context. Use it as a context manager: it gives everything back at the end."""

    def __init__(self, library: str | Path = LIBRARY, device: int = 0) -> None:
        """Load the driver and take the GPU.

        Args:
            library: The driver's library, by name or path.
            device: GPU number as the driver counts (CUDA_VISIBLE_DEVICES applies).

        Raises:
            DriverError: If there is no driver, it lacks a function, or no such GPU answers.
        """
        try:
            self._library = ctypes.CDLL(str(library))
        except OSError as error:
            raise DriverError(
                f"{library} cannot be loaded ({error}); the CUDA driver is needed, install it or run where a GPU is"
            ) from error
        for name, types in _FUNCTIONS.items():
            try:
                function = getattr(self._library, name)
            except AttributeError as error:
                raise DriverError(
                    f"{library} has no {name}: the driver is too old; CUDA 9 or later is needed"
                ) from error
            function.argtypes, function.restype = types, _INT
        self._buffers: dict[int, int] = {}
        self._modules: list[Module] = []
        self._context: ctypes.c_void_p | None = None
        self._call("cuInit", 0)
        count = _INT()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        if not 0 <= device < count.value:
            raise DriverError(
                f"GPU {device} was asked for, the driver shows {count.value}; choose a number below"
            )
        self._device = _INT()
        self._call("cuDeviceGet", ctypes.byref(self._device), device)
        context = _POINTER()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._context = context
        self._call("cuCtxSetCurrent", context)

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(is_failing=kind is not None)

    def close(self, *, is_failing: bool = False) -> None:
        """Give back memory, modules and the context; a second call does nothing.

        Args:
            is_failing: An error is on its way already: one from giving back (after a kernel that crashed, every
                call fails) would hide it.

        Raises:
            DriverError: If the driver refuses.
        """
        if self._context is None:
            return
        steps: list[tuple[str, Any]] = [("cuMemFree_v2", pointer) for pointer in self._buffers]
        steps += [("cuModuleUnload", module.handle) for module in self._modules]
        steps.append(("cuDevicePrimaryCtxRelease_v2", self._device))
        self._buffers, self._modules, self._context = {}, [], None
        codes = [(name, getattr(self._library, name)(argument)) for name, argument in steps]
        failed = [(name, code) for name, code in codes if code]
        if failed and not is_failing:
            raise DriverError(f"{failed[0][0]} failed: {self._error(failed[0][1])}")

    @property
    def name(self) -> str:
        """The GPU's name."""
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, len(text), self._device)
        return text.value.decode(errors="replace")

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Major and minor version of the GPU's architecture."""
        numbers = []
        for attribute in (_COMPUTE_CAPABILITY_MAJOR, _COMPUTE_CAPABILITY_MINOR):
            number = _INT()
            self._call("cuDeviceGetAttribute", ctypes.byref(number), attribute, self._device)
            numbers.append(number.value)
        return numbers[0], numbers[1]

    @property
    def version(self) -> str:
        """The CUDA version that the driver speaks."""
        number = _INT()
        self._call("cuDriverGetVersion", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def load(self, ptx: str, name: str) -> Module:
        """Compile PTX for this GPU.

        Args:
            ptx: The text.
            name: What to call it in messages.

        Raises:
            DriverError: With the compiler's log, if it is refused.
        """
        info, errors = (ctypes.create_string_buffer(_LOG_BUFFER_BYTES) for _ in range(2))
        options = {
            _INFO_LOG: ctypes.cast(info, _POINTER),
            _INFO_LOG_BYTES: _POINTER(_LOG_BUFFER_BYTES),
            _ERROR_LOG: ctypes.cast(errors, _POINTER),
            _ERROR_LOG_BYTES: _POINTER(_LOG_BUFFER_BYTES),
            _LOG_VERBOSE: _POINTER(1),
        }
        handle = _POINTER()
        code = self._library.cuModuleLoadDataEx(
            ctypes.byref(handle),
            ptx.encode(),
            len(options),
            (_INT * len(options))(*options),
            (_POINTER * len(options))(*options.values()),
        )
        if code:
            log = errors.value.decode(errors="replace").strip()
            raise DriverError(
                f"{name}: the driver (CUDA {self.version}) refuses the PTX: {self._error(code)}"
                + (f"; its log: {log}" if log else "")
            )
        module = Module(self, handle, name, info.value.decode(errors="replace").strip())
        self._modules.append(module)
        return module

    def allocate(self, byte_count: int) -> int:
        """Memory on the GPU, with guard bytes behind it; 0 bytes are allowed. Returns its address."""
        pointer = _DEVICE_POINTER()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), byte_count + GUARD_BYTES)
        self._buffers[pointer.value] = byte_count
        self._call("cuMemsetD8_v2", pointer.value + byte_count, _GUARD_VALUE, GUARD_BYTES)
        return pointer.value

    def send(self, data: Any) -> int:
        """A copy of a buffer on the GPU. Returns its address."""
        byte_count = memoryview(data).nbytes
        pointer = self.allocate(byte_count)
        if byte_count:
            view = memoryview(data).cast("B")
            block = ctypes.c_char * byte_count
            content = block.from_buffer_copy(view) if view.readonly else block.from_buffer(view)
            self._call("cuMemcpyHtoD_v2", pointer, content, byte_count)
        return pointer

    def receive(self, pointer: int, into: Any) -> None:
        """Copy from the GPU into a writable buffer, which says how much.

        Raises:
            DriverError: If the buffer is larger than the allocation, or the guard bytes behind it were changed.
        """
        byte_count = memoryview(into).nbytes
        if byte_count > self._buffers[pointer]:
            raise DriverError(f"{byte_count} bytes were asked of an allocation of {self._buffers[pointer]}")
        if byte_count:
            view = memoryview(into).cast("B")
            self._call("cuMemcpyDtoH_v2", (ctypes.c_char * byte_count).from_buffer(view), pointer, byte_count)

    def check_guard(self, pointer: int) -> None:
        """Stop if a kernel wrote behind this allocation.

        Raises:
            DriverError: If it did.
        """
        guard = (ctypes.c_char * GUARD_BYTES)()
        self._call("cuMemcpyDtoH_v2", guard, pointer + self._buffers[pointer], GUARD_BYTES)
        if guard.raw != bytes([_GUARD_VALUE]) * GUARD_BYTES:
            raise DriverError(f"a kernel wrote behind its {self._buffers[pointer]} bytes")

    def free(self, pointer: int) -> None:
        """Give one allocation back."""
        del self._buffers[pointer]
        self._call("cuMemFree_v2", pointer)

    def synchronize(self) -> None:
        """Wait until the GPU is done; an error of a kernel shows here."""
        self._call("cuCtxSynchronize")

    @contextlib.contextmanager
    def timer(self) -> Iterator[list[float]]:
        """Milliseconds between the start and the end of the block on the GPU, in the list once it ended."""
        events = [_POINTER(), _POINTER()]
        elapsed: list[float] = []
        for event in events:
            self._call("cuEventCreate", ctypes.byref(event), 0)
        try:
            self._call("cuEventRecord", events[0], None)
            yield elapsed
            self._call("cuEventRecord", events[1], None)
            self._call("cuEventSynchronize", events[1])
            duration_ms = ctypes.c_float()
            self._call("cuEventElapsedTime", ctypes.byref(duration_ms), *events)
            elapsed.append(duration_ms.value)
        finally:
            for event in events:
                self._library.cuEventDestroy_v2(event)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise DriverError(f"{name} failed: {self._error(code)}")

    def _error(self, code: int) -> str:
        """The driver's own words for a code."""
        words = []
        for function in (self._library.cuGetErrorName, self._library.cuGetErrorString):
            text = ctypes.c_char_p()
            if function(code, ctypes.byref(text)) == 0 and text.value:
                words.append(text.value.decode(errors="replace"))
        return ": ".join(words) or f"code {code}"


class Module:
    """Compiled PTX on a GPU."""

    def __init__(self, driver: Driver, handle: ctypes.c_void_p, name: str, log: str) -> None:
        """Made by `Driver.load`; `log` is what the compiler said."""
        self.driver, self.handle, self.name, self.log = driver, handle, name, log

    def kernel(self, name: str, argument_types: Sequence[Any]) -> Kernel:
        """A kernel by its name.

        Raises:
            DriverError: If the PTX holds no such kernel.
        """
        handle = _POINTER()
        code = self.driver._library.cuModuleGetFunction(ctypes.byref(handle), self.handle, name.encode())
        if code:
            raise DriverError(f"{self.name} has no kernel {name}: {self.driver._error(code)}")
        return Kernel(self.driver, handle, name, tuple(argument_types))


class Kernel:
    """One function of a module."""

    def __init__(
        self, driver: Driver, handle: ctypes.c_void_p, name: str, argument_types: tuple[Any, ...]
    ) -> None:
        """Made by `Module.kernel`."""
        self.driver, self.handle, self.name, self.argument_types = driver, handle, name, argument_types

    def resources(self) -> dict[str, int]:
        """What a thread and a block take on this GPU, as the driver compiled it."""
        found = {}
        for name, attribute in (
            ("registers", _REGISTERS),
            ("local_bytes", _LOCAL_BYTES),
            ("shared_bytes", _SHARED_BYTES),
            ("most_threads_a_block", _MOST_THREADS),
        ):
            number = _INT()
            self.driver._call("cuFuncGetAttribute", ctypes.byref(number), attribute, self.handle)
            found[name] = number.value
        return found

    def launch(self, grid: Size, block: Size, *arguments: int) -> None:
        """Run it; does not wait.

        Args:
            grid: Blocks along x, y, z; with a 0 nothing runs (the driver would refuse it).
            block: Threads of a block along x, y, z.
            arguments: One number an argument: addresses and counts.

        Raises:
            DriverError: If the driver refuses, or the number of arguments is another.
        """
        if len(arguments) != len(self.argument_types):
            raise DriverError(f"{self.name} takes {len(self.argument_types)} arguments, got {len(arguments)}")
        if 0 in grid:
            return
        values = [kind(argument) for kind, argument in zip(self.argument_types, arguments, strict=True)]
        pointers = (_POINTER * len(values))(*(ctypes.addressof(value) for value in values))
        self.driver._call("cuLaunchKernel", self.handle, *grid, *block, 0, None, pointers, None)
