"""Do the kernels answer what their specification says, on this GPU? `python -m infra.kernels.check`

Needs the CUDA driver, Python and NumPy; no toolkit. Exit 0 all cases agree, 1 some do not (the report says which,
with everything needed to run them again), 2 nothing could be checked.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from infra.kernels import launch, specification
from infra.kernels.cases import Case, make_cases
from infra.kernels.driver import LIBRARY, Driver, DriverError, Kernel

CASE_COUNT = 1000
SEED = 20_261_130
TOLERANCE = 1e-5
# Of a kernel that is wrong everywhere, the first cases are enough.
MOST_REPORTED = 5
# The catalogue's size of a feature row, and as many of its features as an explanation names.
TIMING_ROWS, TIMING_COLUMNS, TIMING_K = 100_000, 142, 10
Arrays = dict[str, np.ndarray]


@dataclass
class Verdict:
    """What the cases showed of one kernel.

    Attributes:
        case_count: Cases run.
        largest_difference: Largest |answer - specification| / max(1, |specification|) over finite values of all
            cases that agree in what is NaN, infinite or an index; infinite where one does not.
        failed: Numbers of the cases that disagree.
    """

    case_count: int = 0
    largest_difference: float = 0.0
    failed: list[int] = field(default_factory=list)


def difference(expected: np.ndarray, found: np.ndarray) -> float:
    """How far two answers are apart: 0 for equal ones, infinite where one is NaN, infinite or an index alone.

    Finite values are compared relative to the larger of 1 and the expected value.
    """
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return float("inf")
    if not np.issubdtype(expected.dtype, np.floating):
        return 0.0 if np.array_equal(expected, found) else float("inf")
    is_finite = np.isfinite(expected)
    if not np.array_equal(expected[~is_finite], found[~is_finite], equal_nan=True):
        return float("inf")
    wanted, got = expected[is_finite].astype(np.float64), found[is_finite].astype(np.float64)
    if not np.isfinite(got).all():
        return float("inf")
    return float(np.max(np.abs(got - wanted) / np.maximum(1.0, np.abs(wanted)), initial=0.0))


def _scaling(case: Case, kernel: Kernel) -> tuple[Arrays, Arrays, Arrays]:
    inputs = {"matrix": case.matrix, "center": case.center, "scale": case.scale}
    expected = specification.scale_features(**inputs)
    return inputs, {"scaled": expected}, {"scaled": launch.scale_features(kernel, **inputs)}


def _top_k(case: Case, kernel: Kernel) -> tuple[Arrays, Arrays, Arrays]:
    inputs = {"matrix": case.matrix, "k": np.array(case.k)}
    names = ("values", "indices")
    expected = dict(zip(names, specification.top_k(case.matrix, case.k), strict=True))
    return inputs, expected, dict(zip(names, launch.top_k(kernel, case.matrix, case.k), strict=True))


RUNS: dict[str, Callable[[Case, Kernel], tuple[Arrays, Arrays, Arrays]]] = {
    "scale_features": _scaling,
    "top_k": _top_k,
}


def check_kernels(
    driver: Driver,
    report: Path,
    *,
    case_count: int = CASE_COUNT,
    seed: int = SEED,
    ptx_folder: Path = launch.PTX_FOLDER,
) -> dict[str, Verdict]:
    """Run every case on both kernels and compare.

    Args:
        driver: The GPU.
        report: Folder that is made where a case disagrees: per kernel the case with both answers (npz), the PTX,
            and report.json with the registers it takes here and what the assembler said for other GPUs.
        case_count: Cases a kernel.
        seed: Of the cases.
        ptx_folder: Where the PTX lies.

    Raises:
        DriverError: If the driver fails, or a kernel wrote where it must not.
        OSError: If PTX is missing or the report cannot be written.
    """
    kernels = launch.load_kernels(driver, ptx_folder)
    verdicts = {name: Verdict() for name in kernels}
    for case in make_cases(case_count, seed):
        for name, verdict in verdicts.items():
            inputs, expected, found = RUNS[name](case, kernels[name])
            apart = max(difference(expected[output], found[output]) for output in expected)
            verdict.case_count += 1
            verdict.largest_difference = max(verdict.largest_difference, apart)
            if apart > TOLERANCE:
                verdict.failed.append(case.number)
                if len(verdict.failed) <= MOST_REPORTED:
                    _write_case(report / name, case, inputs, expected, found)
    for name, verdict in verdicts.items():
        if verdict.failed:
            _write_summary(report / name, driver, kernels[name], verdict, seed, ptx_folder)
    return verdicts


def _write_case(folder: Path, case: Case, inputs: Arrays, expected: Arrays, found: Arrays) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = inputs | {f"expected_{name}": array for name, array in expected.items()}
    arrays |= {f"found_{name}": array for name, array in found.items()}
    np.savez_compressed(folder / f"case_{case.number:04d}.npz", **arrays)


def _write_summary(
    folder: Path, driver: Driver, kernel: Kernel, verdict: Verdict, seed: int, ptx_folder: Path
) -> None:
    file = launch.KERNELS[kernel.name][0]
    shutil.copy(ptx_folder / file, folder / file)
    assembled = json.loads((ptx_folder / "registers.json").read_text(encoding="utf-8"))
    document: dict[str, Any] = {
        "kernel": kernel.name,
        "gpu": driver.name,
        "compute_capability": "{}.{}".format(*driver.compute_capability),
        "driver_cuda_version": driver.version,
        "seed": seed,
        "case_count": verdict.case_count,
        "failed_cases": verdict.failed,
        "tolerance": TOLERANCE,
        "ptx": file,
        "resources_here": kernel.resources(),
        "registers_by_assembler": assembled["registers"][kernel.name],
    }
    (folder / "report.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def time_kernels(kernels: Mapping[str, Kernel], rows: int) -> dict[str, float]:
    """Milliseconds of one launch on so many rows of 142 features (top 10), the least of five; no transfers."""
    columns, k = TIMING_COLUMNS, TIMING_K
    driver = kernels["top_k"].driver
    random = np.random.default_rng(SEED)
    matrix = driver.send(random.normal(size=(rows, columns)).astype(np.float32))
    column = driver.send(np.ones(columns, dtype=np.float32))
    scaled = driver.allocate(rows * columns * 4)
    slots = [driver.allocate(rows * k * 4) for _ in range(2)]
    wide, high, _ = launch.SCALING_BLOCK
    grid = (-(-columns // wide), min(-(-rows // high), launch.MOST_BLOCKS_Y), 1)
    runs: dict[str, Callable[[], None]] = {
        "scale_features": lambda: kernels["scale_features"].launch(
            grid, launch.SCALING_BLOCK, matrix, column, column, scaled, rows, columns
        ),
        "top_k": lambda: kernels["top_k"].launch(
            (min(rows, launch.MOST_ROW_BLOCKS), 1, 1),
            (launch.TOP_K_THREADS, 1, 1),
            matrix,
            *slots,
            rows,
            columns,
            k,
        ),
    }
    durations_ms = {}
    for name, run in runs.items():
        times = []
        for _ in range(5):
            with driver.timer() as elapsed:
                run()
            times += elapsed
        durations_ms[name] = min(times)
    for pointer in (matrix, column, scaled, *slots):
        driver.free(pointer)
    return durations_ms


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(description="Compare the GPU kernels with their NumPy specification.")
    parser.add_argument("--cases", type=int, default=CASE_COUNT, help="random cases a kernel")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the cases")
    parser.add_argument("--device", type=int, default=0, help="GPU number as the driver counts")
    parser.add_argument("--library", default=LIBRARY, help="the CUDA driver's library")
    parser.add_argument("--ptx", type=Path, default=launch.PTX_FOLDER, help="folder of the PTX")
    parser.add_argument(
        "--report", type=Path, default=Path("kernel_report"), help="folder written where a case disagrees"
    )
    parser.add_argument(
        "--timing-rows",
        type=int,
        default=TIMING_ROWS,
        help="rows of 142 features to time a launch on, 0 for none",
    )
    options = parser.parse_args(arguments)
    try:
        with Driver(options.library, options.device) as driver:
            _say(
                f"{driver.name}, compute capability {'.'.join(map(str, driver.compute_capability))}, "
                f"driver for CUDA {driver.version}"
            )
            verdicts = check_kernels(
                driver, options.report, case_count=options.cases, seed=options.seed, ptx_folder=options.ptx
            )
            kernels = launch.load_kernels(driver, options.ptx)
            rows = options.timing_rows
            times_ms = time_kernels(kernels, rows) if rows > 0 else {}
            for name, verdict in verdicts.items():
                timed = (
                    f", {times_ms[name]:.3f} ms for {rows:,} rows x {TIMING_COLUMNS} features"
                    if name in times_ms
                    else ""
                )
                _say(
                    f"{name}: {verdict.case_count} cases, {len(verdict.failed)} disagree, largest difference "
                    f"{verdict.largest_difference:.3g} (limit {TOLERANCE:g}), "
                    f"{kernels[name].resources()['registers']} registers a thread{timed}"
                )
    except (DriverError, OSError) as error:
        _say(f"kernels: not checked: {error}")
        return 2
    failed = [name for name, verdict in verdicts.items() if verdict.failed]
    if failed:
        _say(f"kernels: {' and '.join(failed)} disagree with the specification; cases in {options.report}")
        return 1
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
