"""1,000 random cases: the kernels' own source, built for the CPU, against the specification."""

import json
import shutil

import numpy as np
import pytest

from infra.kernels import launch, specification
from infra.kernels.cases import make_cases
from infra.kernels.check import CASE_COUNT, SEED, TOLERANCE, check_kernels, difference, main
from infra.kernels.driver import Driver, DriverError


def test_1000_cases_agree_with_the_specification(fake_library, fake, tmp_path) -> None:
    with Driver(fake_library) as driver:
        verdicts = check_kernels(driver, tmp_path / "report")
    assert set(verdicts) == {"scale_features", "top_k"}
    for verdict in verdicts.values():
        assert verdict.case_count == CASE_COUNT == 1000
        assert verdict.failed == []
        assert verdict.largest_difference <= TOLERANCE
    assert not (tmp_path / "report").exists()
    assert fake.leaks() == 0


def test_a_kernel_that_breaks_ties_wrongly_is_caught_and_reported(build_fake, tmp_path, capsys) -> None:
    wrong = build_fake("-DWARPGAUGE_WRONG_TIES")
    report = tmp_path / "report"
    code = main(["--library", str(wrong), "--report", str(report), "--cases", "100", "--timing-rows", "0"])
    assert code == 1
    said = capsys.readouterr().out
    assert "scale_features: 100 cases, 0 disagree" in said
    assert f"kernels: top_k disagree with the specification; cases in {report}" in said
    assert [folder.name for folder in report.iterdir()] == ["top_k"]
    summary = json.loads((report / "top_k" / "report.json").read_text())
    assert summary["kernel"] == "top_k"
    assert summary["gpu"] == "Fake GPU"
    assert summary["seed"] == SEED
    assert summary["resources_here"]["registers"] == 32
    assert summary["registers_by_assembler"]["sm_90"] > 0
    ptx = (launch.PTX_FOLDER / "top_k.ptx").read_bytes()
    assert (report / "top_k" / summary["ptx"]).read_bytes() == ptx
    cases = sorted((report / "top_k").glob("case_*.npz"))
    assert len(cases) == 5
    assert len(summary["failed_cases"]) > 5
    # The case is whole: the specification gives its expected answer again, and the found one differs.
    with np.load(cases[0]) as case:
        values, indices = specification.top_k(case["matrix"], int(case["k"]))
        np.testing.assert_array_equal(values, case["expected_values"])
        np.testing.assert_array_equal(indices, case["expected_indices"])
        assert not np.array_equal(indices, case["found_indices"])
    number = int(cases[0].stem.removeprefix("case_"))
    assert number == summary["failed_cases"][0]


def test_the_command_says_what_was_compared(fake_library, tmp_path, capsys) -> None:
    code = main(
        [
            "--library",
            str(fake_library),
            "--report",
            str(tmp_path / "r"),
            "--cases",
            "12",
            "--timing-rows",
            "0",
        ]
    )
    assert code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Fake GPU, compute capability 7.5, driver for CUDA 12.4"
    for name, line in zip(("scale_features", "top_k"), lines[1:], strict=True):
        assert line == (
            f"{name}: 12 cases, 0 disagree, largest difference 0 (limit 1e-05), 32 registers a thread"
        )


def test_what_keeps_the_check_from_running_is_not_taken_for_agreement(
    fake_library, fake, tmp_path, capsys
) -> None:
    def run(*arguments: str) -> int:
        return main(["--cases", "3", "--timing-rows", "0", "--report", str(tmp_path / "report"), *arguments])

    assert run("--library", str(tmp_path / "none.so")) == 2
    assert "the CUDA driver is needed" in capsys.readouterr().out
    assert run("--library", str(fake_library), "--device", "3") == 2
    assert run("--library", str(fake_library), "--ptx", str(tmp_path)) == 2
    fake.fail("cuLaunchKernel", 700)
    assert run("--library", str(fake_library)) == 2
    assert "cuLaunchKernel failed: CUDA_ERROR_ILLEGAL_ADDRESS" in capsys.readouterr().out


def test_a_kernel_that_writes_behind_its_result_is_caught(fake_library, fake) -> None:
    with Driver(fake_library) as driver:
        kernel = launch.load_kernels(driver)["scale_features"]
        matrix, column = np.ones((4, 8), dtype=np.float32), np.ones(8, dtype=np.float32)
        pointers = [driver.send(array) for array in (matrix, column, column, matrix)]
        kernel.launch((1, 1, 1), launch.SCALING_BLOCK, *pointers, 5, 8)
        with pytest.raises(DriverError, match="wrote behind its 128 bytes"):
            driver.check_guard(pointers[3])


@pytest.mark.parametrize(
    ("expected", "found", "apart"),
    [
        ([1.0, np.nan], [1.0, np.nan], 0.0),
        ([200.0], [201.0], 0.005),
        ([0.0], [0.5], 0.5),
        ([np.inf], [np.inf], 0.0),
        ([np.inf], [-np.inf], np.inf),
        ([np.inf], [1.0], np.inf),
        ([1.0], [np.inf], np.inf),
        ([1.0], [np.nan], np.inf),
        ([np.nan], [0.0], np.inf),
        ([1.0], [1.0, 2.0], np.inf),
        ([], [], 0.0),
    ],
)
def test_the_difference_of_two_answers(expected, found, apart) -> None:
    assert apart == difference(np.array(expected, dtype=np.float32), np.array(found, dtype=np.float32))


def test_one_wrong_index_is_a_disagreement() -> None:
    assert difference(np.array([1, 2], dtype=np.int32), np.array([1, 2], dtype=np.int32)) == 0.0
    assert difference(np.array([1, 2], dtype=np.int32), np.array([1, 3], dtype=np.int32)) == float("inf")


def test_more_rows_than_blocks_are_walked(fake_library, monkeypatch) -> None:
    monkeypatch.setattr(launch, "MOST_ROW_BLOCKS", 3)
    monkeypatch.setattr(launch, "MOST_BLOCKS_Y", 2)
    case = next(case for case in make_cases(200, 1) if case.matrix.shape[0] > 100)
    with Driver(fake_library) as driver:
        kernels = launch.load_kernels(driver)
        values, indices = launch.top_k(kernels["top_k"], case.matrix, 2)
        scaled = launch.scale_features(kernels["scale_features"], case.matrix, case.center, case.scale)
    expected_values, expected_indices = specification.top_k(case.matrix, 2)
    np.testing.assert_array_equal(values, expected_values)
    np.testing.assert_array_equal(indices, expected_indices)
    np.testing.assert_array_equal(scaled, specification.scale_features(case.matrix, case.center, case.scale))


@pytest.mark.gpu
def test_1000_cases_agree_on_the_gpu(tmp_path) -> None:
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no NVIDIA driver here")
    assert main(["--report", str(tmp_path / "report")]) == 0
