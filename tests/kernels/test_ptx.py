"""The PTX that is shipped belongs to the sources, and answers what the specification says.

No GPU runs it here, so a small interpreter does: every instruction of the shipped text, thread by thread.
"""

import ctypes
import json
import re

import numpy as np
import pytest

from infra.kernels import build_ptx, launch, specification
from infra.kernels.cases import make_cases
from infra.kernels.check import SEED
from tests.kernels.ptx_interpreter import Memory, run_ptx

FILES = sorted(launch.PTX_FOLDER.glob("*.ptx"))


@pytest.mark.parametrize("name", build_ptx.SOURCES)
def test_the_shipped_ptx_was_made_from_the_sources_of_today(name) -> None:
    first = (launch.PTX_FOLDER / f"{name}.ptx").read_text().splitlines()[0]
    assert first.endswith(build_ptx.source_sha256(name)), "run infra/kernels/build_ptx.py"


def test_every_driver_since_cuda_9_and_every_gpu_since_maxwell_takes_it() -> None:
    assert len(FILES) == 2
    for file in FILES:
        text = file.read_text()
        assert ".version 6.0\n.target sm_50\n.address_size 64\n" in text
        # Exact division, denormals kept: nothing that a fast-math build would leave.
        assert not re.search(r"\.ftz|\.approx|div\.full|fma\.", text)


@pytest.mark.parametrize("name", launch.KERNELS)
def test_the_arguments_are_those_of_the_ptx(name) -> None:
    file, types = launch.KERNELS[name]
    bits = re.findall(rf"\.param \.u(\d+) {name}_param_\d+", (launch.PTX_FOLDER / file).read_text())
    assert [int(size) for size in bits] == [8 * ctypes.sizeof(kind) for kind in types]


def test_registers_are_known_for_each_kernel() -> None:
    registers = json.loads((launch.PTX_FOLDER / "registers.json").read_text())["registers"]
    assert set(registers) == set(launch.KERNELS)
    for counts in registers.values():
        assert {"sm_60", "sm_75", "sm_90"} <= set(counts)
        # At 32 a multiprocessor of every GPU holds its full number of threads.
        assert all(0 < count <= 32 for count in counts.values())


def test_comments_and_versions_of_the_compiler_are_set_back() -> None:
    raw = "// Banner\n\n.version 9.5\n.target sm_75\n.address_size 64\n\n\n\t// .globl k\n.visible .entry k()\n{\n\tret; // end\n}"
    assert build_ptx.strip_ptx(raw) == (
        ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry k()\n{\n\tret;\n}\n"
    )


def run_scaling(matrix, center, scale) -> np.ndarray:
    memory = Memory()
    pointers = [memory.add(array.tobytes()) for array in (matrix, center, scale, np.zeros_like(matrix))]
    rows, columns = matrix.shape
    text = (launch.PTX_FOLDER / "feature_scaling.ptx").read_text()
    with np.errstate(all="ignore"):
        run_ptx(text, (-(-columns // 4), 2, 1), (4, 2, 1), [*pointers, rows, columns], memory)
    return np.frombuffer(memory.content(pointers[3]), dtype=np.float32).reshape(rows, columns)


def run_top_k(matrix, k) -> tuple[np.ndarray, np.ndarray]:
    memory = Memory()
    rows, columns = matrix.shape
    pointers = [
        memory.add(content) for content in (matrix.tobytes(), bytes(rows * k * 4), bytes(rows * k * 4))
    ]
    text = (launch.PTX_FOLDER / "top_k.ptx").read_text()
    run_ptx(text, (2, 1, 1), (4, 1, 1), [*pointers, rows, columns, k], memory)
    values = np.frombuffer(memory.content(pointers[1]), dtype=np.float32).reshape(rows, k)
    return values, np.frombuffer(memory.content(pointers[2]), dtype=np.int32).reshape(rows, k)


SMALL = [case for case in make_cases(400, SEED) if case.matrix.size <= 100]


def test_the_shipped_ptx_answers_small_cases_as_specified() -> None:
    """Every case of at most 100 cells among the first 400, with NaN, infinities, ties, k from 0 to beyond."""
    assert len(SMALL) > 80
    for case in SMALL:
        scaled = run_scaling(case.matrix, case.center, case.scale)
        expected = specification.scale_features(case.matrix, case.center, case.scale)
        np.testing.assert_array_equal(scaled, expected, err_msg=f"case {case.number}")
        values, indices = run_top_k(case.matrix, case.k)
        expected_values, expected_indices = specification.top_k(case.matrix, case.k)
        np.testing.assert_array_equal(values, expected_values, err_msg=f"case {case.number}")
        np.testing.assert_array_equal(indices, expected_indices, err_msg=f"case {case.number}")


def test_the_interpreter_refuses_what_it_does_not_know() -> None:
    text = ".visible .entry k(\n.param .u64 k_param_0\n)\n{\n\tbar.sync 0;\n\tret;\n}\n"
    with pytest.raises(AssertionError, match=r"bar\.sync is not known"):
        run_ptx(text, (1, 1, 1), (1, 1, 1), [0], Memory())
