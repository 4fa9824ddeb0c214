"""How fast can a trained forest answer one row? In about a microsecond, from a compiled kernel.

LightGBM's own ways spend most of a single prediction on the way to the trees. Here one C source
(`tree_kernel.c`) is compiled once a machine and given a model as arrays (`tree_code.py`), so a new model needs no
compiler run and two models never share code that was made for one of them. The text is checked first
(`tree_text.py`). Where there is no compiler, LightGBM's single-row C call answers, and `engine` and `reason` say so.

This is the one module of the library that writes files: a compiler has no other way to answer.
The kernel is machine code: it is taken only from a folder that nobody else can write, and only if its content
has the SHA-256 that its name promises, so that a cut file is compiled anew and not loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from warpgauge.errors import SchemaError, SettingsError
from warpgauge.latency.tree_code import Unpackable, pack
from warpgauge.latency.tree_text import read_forest

FloatArray = npt.NDArray[np.float64]

COMPILED = "compiled"
LIGHTGBM = "lightgbm"

SOURCE_FILE = Path(__file__).with_name("tree_kernel.c")
COMPILERS = ("cc", "gcc", "clang")
# No -ffast-math: the answer must be LightGBM's to the last bit. The second line is for compilers that do not know
# this CPU by name.
_FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=off", "-fvisibility=hidden", "-fPIC", "-shared")
_FLAG_SETS = ((*_FLAGS, "-march=native"), _FLAGS)
# Measured: 0.3 s. A compiler that hangs must not hang the prediction.
COMPILE_TIMEOUT_S = 60.0
_LIGHTGBM_FLOAT64 = 1  # C_API_DTYPE_FLOAT64
_LIGHTGBM_NORMAL = 0  # C_API_PREDICT_NORMAL


@dataclass(frozen=True)
class _Kernel:
    """The loaded kernel: `python` holds the interpreter's lock during a call, `free` lets it go."""

    python: ctypes.PyDLL
    free: ctypes.CDLL

    @property
    def has_strikes(self) -> bool:
        return bool(self.free.warpgauge_has_strikes())


class _NoKernelError(Exception):
    """There is no kernel on this machine; the message says why. Never leaves this module."""


class Predictor:
    """One model, answering rows of float64 in its column order: NaN is missing, a category is its code.

    Codes that the trees do not know, negative ones among them, go where LightGBM sends them. Threads may share a
    predictor.

    Attributes:
        engine: `compiled` or `lightgbm`.
        reason: Why it is not `compiled`; empty if it is.
        feature_count: Columns of a row.
        predict_row: One row, shape (features,), float64, to one number. Raises SchemaError if it is anything else.
    """

    predict_row: Callable[[FloatArray], float]

    def __init__(self, answers: _CompiledAnswers | _LightgbmAnswers, feature_count: int, reason: str) -> None:
        """Use `compile`."""
        self._answers = answers
        self.engine = answers.engine
        self.reason = reason
        self.feature_count = feature_count
        # An attribute, not a method: the call is then C all the way.
        self.predict_row = answers.predict_row

    @classmethod
    def compile(
        cls, text: str, *, cache_dir: Path | None = None, compilers: Sequence[str] = COMPILERS
    ) -> Predictor:
        """The predictor of a LightGBM regression model.

        Args:
            text: LightGBM's model text.
            cache_dir: Folder that keeps the compiled kernel for later processes; made if absent, private to this
                user. None compiles once a process and leaves no file.
            compilers: Names or paths of C compilers, the first one found serves; none to use LightGBM.

        Raises:
            ModelFileError: If the text is cut or altered so that its trees do not hold together, or of a kind
                that is not answered by a sum of leaves.
            SettingsError: If others can write the folder, or it cannot be made.
        """
        forest = read_forest(text)
        try:
            kernel = _load_kernel(cache_dir, compilers)
            block = pack(forest, has_strikes=kernel.has_strikes)
            if isinstance(block, Unpackable):
                raise _NoKernelError(block.reason)
        except _NoKernelError as error:
            return cls(_LightgbmAnswers(text, forest.feature_count), forest.feature_count, str(error))
        return cls(_CompiledAnswers(kernel, block), forest.feature_count, "")

    def predict(self, matrix: FloatArray) -> FloatArray:
        """One number a row.

        Args:
            matrix: Shape (rows, features), any memory order.

        Raises:
            SchemaError: If it has another number of columns or dimensions.
        """
        matrix = np.ascontiguousarray(matrix, dtype=np.float64)
        if matrix.ndim != 2 or matrix.shape[1] != self.feature_count:
            raise SchemaError(
                f"the matrix has the shape {matrix.shape}, needed is (rows, {self.feature_count}); "
                f"give the columns that the model was trained on"
            )
        return self._answers.predict(matrix)


class _CompiledAnswers:
    engine = COMPILED

    def __init__(self, kernel: _Kernel, block: npt.NDArray[np.uint8]) -> None:
        self._kernel = kernel
        self._model = kernel.python.warpgauge_model(block.ctypes.data)
        self._address = kernel.python.warpgauge_address(self._model)
        self.predict_row: Callable[[FloatArray], float] = kernel.python.warpgauge_row_function(self._model)

    def predict(self, matrix: FloatArray) -> FloatArray:
        predicted = np.empty(len(matrix))
        self._kernel.free.warpgauge_predict(
            self._address, matrix.ctypes.data, len(matrix), predicted.ctypes.data
        )
        return predicted


class _LightgbmAnswers:
    """LightGBM's single-row C call: what the compiled form is measured against, and what stands in for it."""

    engine = LIGHTGBM

    def __init__(self, text: str, feature_count: int) -> None:
        import lightgbm

        self._booster = lightgbm.Booster(model_str=text)
        # The wheel's own library object; the package has no public name for it.
        self._library: Any = lightgbm.basic._LIB  # type: ignore[attr-defined]
        self._feature_count = feature_count
        self._settings = ctypes.c_void_p()
        self._check(
            self._library.LGBM_BoosterPredictForMatSingleRowFastInit(
                self._booster._handle,
                ctypes.c_int(_LIGHTGBM_NORMAL),
                ctypes.c_int(0),
                ctypes.c_int(-1),
                ctypes.c_int(_LIGHTGBM_FLOAT64),
                ctypes.c_int32(feature_count),
                ctypes.c_char_p(b"num_threads=1"),
                ctypes.byref(self._settings),
            )
        )

    def __del__(self) -> None:
        settings = getattr(self, "_settings", None)
        if settings:
            self._library.LGBM_FastConfigFree(settings)

    def predict_row(self, row: FloatArray) -> float:
        """Same contract as the compiled form."""
        if not isinstance(row, np.ndarray):
            raise SchemaError(
                f"a row is a {type(row).__name__}; needed is one dimension of {self._feature_count} float64"
            )
        if row.shape != (self._feature_count,) or row.dtype != np.float64:
            raise SchemaError(
                f"a row has the shape {row.shape} and type {row.dtype}; needed is one dimension of "
                f"{self._feature_count} float64"
            )
        row = np.ascontiguousarray(row)
        length, answer = ctypes.c_int64(), ctypes.c_double()
        self._check(
            self._library.LGBM_BoosterPredictForMatSingleRowFast(
                self._settings,
                ctypes.c_void_p(row.ctypes.data),
                ctypes.byref(length),
                ctypes.byref(answer),
            )
        )
        return answer.value

    def predict(self, matrix: FloatArray) -> FloatArray:
        if not len(matrix):
            return np.empty(0)  # LightGBM refuses an empty matrix
        # One thread: LightGBM's threads spin, and waking them costs more than a small batch.
        return np.asarray(self._booster.predict(matrix, num_threads=1), dtype=np.float64)

    def _check(self, code: int) -> None:
        if code:
            message = self._library.LGBM_GetLastError
            message.restype = ctypes.c_char_p
            raise RuntimeError(f"LightGBM's C call failed: {message().decode()}")


_kernels: dict[str, _Kernel] = {}
_kernels_lock = threading.Lock()


def _load_kernel(cache_dir: Path | None, compilers: Sequence[str]) -> _Kernel:
    """The kernel of this machine: loaded once a process, compiled once a cache folder.

    Raises:
        _NoKernelError: If there is no compiler, or what it makes cannot be loaded.
        SettingsError: If the folder is not safe.
    """
    if os.name != "posix":
        raise _NoKernelError(f"the kernel is not built on {os.name}")
    folder = None if cache_dir is None else _safe_folder(cache_dir)
    compiler = next(filter(None, map(shutil.which, compilers)), None)
    if compiler is None:
        raise _NoKernelError(f"no C compiler was found (looked for {', '.join(compilers) or 'none'})")
    source = SOURCE_FILE.read_bytes()
    key = _key(source, compiler)
    with _kernels_lock:
        if key not in _kernels:
            if folder is None:
                _kernels[key] = _open_unkept(_build(compiler, source))
            else:
                found = _cached(folder, key)
                _kernels[key] = _open(found or _write(folder, key, _build(compiler, source)))
        return _kernels[key]


def _safe_folder(folder: Path) -> Path:
    """The folder, made if absent, if nobody but this user (or root) can put a file into it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve(strict=True)
        facts = folder.stat()
    except OSError as error:
        raise SettingsError(
            f"the folder for compiled code cannot be used: {error}; give another one"
        ) from error
    if facts.st_uid not in (os.geteuid(), 0) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise SettingsError(
            f"{folder} holds code that is executed, and others can write it (owner {facts.st_uid}, mode "
            f"{stat.S_IMODE(facts.st_mode):o}); make it yours alone (chmod 700) or give another folder"
        )
    for parent in folder.parents:
        facts = parent.stat()
        is_writable = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not facts.st_mode & stat.S_ISVTX
        if is_writable or facts.st_uid not in (os.geteuid(), 0):
            raise SettingsError(
                f"{folder} holds code that is executed, and others can replace it through {parent} (owner "
                f"{facts.st_uid}, mode {stat.S_IMODE(facts.st_mode):o}); give another folder"
            )
    return folder


def _key(source: bytes, compiler: str) -> str:
    """Names what the compiled kernel depends on: source, flags, compiler and CPU."""
    parts = (source, repr(_FLAG_SETS).encode(), _compiler_version(compiler).encode(), _cpu().encode())
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:32]


@lru_cache
def _compiler_version(compiler: str) -> str:
    try:
        answer = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, check=True, timeout=COMPILE_TIMEOUT_S
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise _NoKernelError(f"the C compiler {compiler} does not answer: {error}") from error
    return answer.stdout


def _cpu() -> str:
    """What `-march=native` looks at; a folder may be shared by machines that differ."""
    known = f"{sys.platform} {platform.machine()}"
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0].split("\n")
    except OSError:  # not Linux
        return known
    names = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "CPU part")
    return "\n".join([known, *(line for line in lines if line.split(":")[0].strip() in names)])


def _build(compiler: str, source: bytes) -> bytes:
    """The kernel as a shared library."""
    outcome = ""
    extra = ("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()
    try:
        with tempfile.TemporaryDirectory(prefix="warpgauge-") as private:
            made = Path(private) / "kernel.so"
            for flags in _FLAG_SETS:
                command = [compiler, *flags, *extra, "-x", "c", "-", "-o", str(made), "-lm"]
                run = subprocess.run(
                    command, input=source, capture_output=True, check=False, timeout=COMPILE_TIMEOUT_S
                )
                if run.returncode == 0 and made.exists():
                    return made.read_bytes()
                outcome = run.stderr.decode(errors="replace").strip()[:300]
    except (OSError, subprocess.SubprocessError) as error:
        raise _NoKernelError(f"the C compiler {compiler} did not finish: {error}") from error
    raise _NoKernelError(f"the C compiler {compiler} failed: {outcome or 'it made no file'}")


def _write(folder: Path, key: str, content: bytes) -> Path:
    """Write the kernel whole or not at all; its name promises its content, so two writers cannot clash."""
    place = folder / f"tree-kernel-{key}-{hashlib.sha256(content).hexdigest()}.so"
    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix="tree-kernel-", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(place)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise SettingsError(
            f"the compiled code cannot be kept: {error}; free space or give another folder"
        ) from error
    return place


def _cached(folder: Path, key: str) -> Path | None:
    """The kernel of that key if nobody else can write it and its content is what its name promises."""
    for place in sorted(folder.glob(f"tree-kernel-{key}-*.so")):
        facts = place.lstat()
        is_ours = stat.S_ISREG(facts.st_mode) and facts.st_uid in (os.geteuid(), 0)
        if is_ours and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            promised = place.stem.rpartition("-")[2]
            if hashlib.sha256(place.read_bytes()).hexdigest() == promised:
                return place
    return None


def _open_unkept(content: bytes) -> _Kernel:
    """Load the kernel from a private file that is gone afterwards; what is loaded stays."""
    try:
        with tempfile.TemporaryDirectory(prefix="warpgauge-") as private:
            place = Path(private) / "kernel.so"
            place.write_bytes(content)
            return _open(place)
    except OSError as error:
        raise _NoKernelError(f"the compiled kernel cannot be written: {error}") from error


def _open(place: Path) -> _Kernel:
    """Load the kernel; it stays loaded as long as the process, since functions from it may live as long."""
    try:
        kernel = _Kernel(ctypes.PyDLL(str(place)), ctypes.CDLL(str(place)))
    except OSError as error:
        raise _NoKernelError(f"the compiled kernel cannot be loaded: {error}") from error
    python: Any = kernel.python
    python.warpgauge_use_error.argtypes = [ctypes.py_object]
    python.warpgauge_use_error.restype = None
    python.warpgauge_use_error(SchemaError)
    python.warpgauge_model.argtypes = [ctypes.c_void_p]
    python.warpgauge_model.restype = ctypes.py_object
    python.warpgauge_row_function.argtypes = [ctypes.py_object]
    python.warpgauge_row_function.restype = ctypes.py_object
    python.warpgauge_address.argtypes = [ctypes.py_object]
    python.warpgauge_address.restype = ctypes.c_void_p
    kernel.free.warpgauge_predict.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_void_p,
    ]
    kernel.free.warpgauge_predict.restype = None
    return kernel
