"""Make ptx/ from the kernels' sources: `python infra/kernels/build_ptx.py`. Done by hand after a change, not by users.

nvcc writes PTX of its own newest version, which a driver of last year refuses, for GPUs of its own oldest kind.
The kernels use nothing but what PTX had long ago, so the two header lines are set back to BASE_VERSION and
BASE_TARGET, and the assembler, which refuses anything newer than those lines allow, proves it for every GPU that
it knows. It also says how many registers a thread takes there: registers.json.

Needs nvcc: a CUDA toolkit on the path, or the wheels nvidia-cuda-nvcc, nvidia-cuda-runtime, nvidia-cuda-crt and
nvidia-nvvm in the Python that runs this. A second assembler (--ptxas, repeated; the wheel nvidia-cuda-nvcc-cu12 has
one) covers older GPUs that nvcc's own no longer knows.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES = {"feature_scaling": "feature_scaling.cu", "top_k": "top_k.cu"}
SHARED_HEADER = "kernel.h"
# PTX 6.0 is of CUDA 9.0 (2017), sm_50 is Maxwell (2014).
BASE_VERSION = "6.0"
BASE_TARGET = "sm_50"
GPUS = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
_USED = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'.*?Used (\d+) registers", re.DOTALL)


def source_sha256(name: str) -> str:
    """Of a kernel's source and the header it includes: says which source a PTX file was made from."""
    content = b"".join((FOLDER / file).read_bytes() for file in (SOURCES[name], SHARED_HEADER))
    return hashlib.sha256(content).hexdigest()


def strip_ptx(text: str) -> str:
    """PTX without the compiler's comments, its header set back to the base."""
    lines = [line.split("//")[0].rstrip() for line in text.splitlines()]
    body = re.sub(r"\n{2,}", "\n", "\n".join(lines)).strip()
    body = re.sub(r"^\.version .*$", f".version {BASE_VERSION}", body, count=1, flags=re.MULTILINE)
    return re.sub(r"^\.target .*$", f".target {BASE_TARGET}", body, count=1, flags=re.MULTILINE) + "\n"


def find_nvcc() -> Path:
    """nvcc of the path, else of a wheel.

    Raises:
        SystemExit: If there is none.
    """
    if found := shutil.which("nvcc"):
        return Path(found)
    for folder in map(Path, sys.path):
        if found_in_wheel := sorted(folder.glob("nvidia/cu*/bin/nvcc")):
            return found_in_wheel[-1]
    raise SystemExit(
        "build_ptx: no nvcc found; python -m pip install nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-crt nvidia-nvvm"
    )


def run(command: Sequence[str | Path]) -> str:
    """Output of a compiler.

    Raises:
        SystemExit: With what it said, if it fails.
    """
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"build_ptx: {' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def knows(assembler: Path, gpu: str) -> bool:
    """Whether an assembler can make code for this GPU, whatever it thinks of a given PTX."""
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty.ptx"
        empty.write_text(
            f".version {BASE_VERSION}\n.target {BASE_TARGET}\n.address_size 64\n", encoding="ascii"
        )
        command = [assembler, f"-arch={gpu}", "-o", Path(folder) / "out", empty]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def assemble(ptx: Path, assemblers: Mapping[str, Path]) -> dict[str, dict[str, int]]:
    """Registers a thread: kernel -> GPU -> count.

    Args:
        ptx: The file.
        assemblers: GPU -> an assembler that knows it.

    Raises:
        SystemExit: If one refuses the PTX.
    """
    registers: dict[str, dict[str, int]] = {}
    for gpu, assembler in assemblers.items():
        with tempfile.TemporaryDirectory() as folder:
            said = run([assembler, "-v", f"-arch={gpu}", "-o", Path(folder) / "out", ptx])
        for kernel, _, count in _USED.findall(said):
            registers.setdefault(kernel, {})[gpu] = int(count)
    return registers


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Compile the kernels to PTX and count their registers.")
    parser.add_argument("--nvcc", type=Path, help="the compiler; default: of the path, else of a wheel")
    parser.add_argument("--ptxas", type=Path, action="append", default=[], help="a further assembler")
    parser.add_argument("--into", type=Path, default=FOLDER / "ptx", help="folder to write")
    options = parser.parse_args(arguments)
    nvcc: Path = options.nvcc or find_nvcc()
    version = re.search(r"release [\d.]+, V([\d.]+)", run([nvcc, "--version"]))
    beside = shutil.which("ptxas", path=str(nvcc.resolve().parent))
    tools = [*([Path(beside)] if beside else []), *options.ptxas]
    assemblers = {gpu: next((tool for tool in tools if knows(tool, gpu)), None) for gpu in GPUS}
    known = {gpu: tool for gpu, tool in assemblers.items() if tool}
    if not known:
        raise SystemExit(f"build_ptx: {nvcc} has no ptxas beside it that works; name one by --ptxas")
    options.into.mkdir(parents=True, exist_ok=True)
    registers: dict[str, dict[str, int]] = {}
    for name, source in SOURCES.items():
        with tempfile.TemporaryDirectory() as folder:
            raw = Path(folder) / "raw.ptx"
            run([nvcc, "-ptx", "-arch=compute_75", "-o", raw, FOLDER / source])
            body = strip_ptx(raw.read_text(encoding="ascii"))
        ptx = options.into / f"{name}.ptx"
        ptx.write_text(f"// {source}, sources {source_sha256(name)}\n{body}", encoding="ascii")
        registers |= assemble(ptx, known)
    document = {"compiler": f"nvcc {version[1] if version else 'of unknown version'}", "registers": registers}
    (options.into / "registers.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    for kernel, counts in registers.items():
        sys.stdout.write(
            f"{kernel}: {', '.join(f'{gpu} {count}' for gpu, count in counts.items())} registers\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
