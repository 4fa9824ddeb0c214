"""warpgauge/latency/predictor.py: LightGBM's numbers to the last bit, and code that is loaded only when it is safe."""

import gc
import os
import re
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import lightgbm
import numpy as np
import pytest

from warpgauge.errors import ModelFileError, SchemaError, SettingsError
from warpgauge.latency import predictor
from warpgauge.latency.predictor import COMPILED, COMPILERS, LIGHTGBM, Predictor

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 12
CATEGORICAL = [10, 11]
COMPILER = next(filter(None, map(shutil.which, COMPILERS)), None)
ODD_VALUES = (
    np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-36, -1e-36, 1e-35, -1e-35, 5e-324, 1e300, -1e300, -0.5, -1.0, 2.7, 44.9,
    45.0, 64.0, 96.0, 1e9, 2.0**31, 2.0**32, 2.0**63, -(2.0**31),
)  # fmt: skip
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler on this machine")


def make_rows(rows: int, seed: int, *, missing: bool = True, categorical: bool = True) -> np.ndarray:
    random = np.random.default_rng(seed)
    matrix = random.standard_normal((rows, COLUMNS))
    matrix[:, 6:10] = np.round(matrix[:, 6:10] * 2)
    if categorical:
        matrix[:, CATEGORICAL] = random.integers(0, 45, (rows, 2))
    if missing:
        matrix[:, 3:12][random.random((rows, 9)) < 0.1] = np.nan
    return matrix


def train(
    rounds: int = 40, seed: int = 0, *, missing: bool = True, categorical: bool = True, **params: object
) -> str:
    matrix = make_rows(3000, seed, missing=missing, categorical=categorical)
    random = np.random.default_rng(seed + 1)
    numbers = np.nan_to_num(matrix)
    target = numbers[:, :10] @ random.standard_normal(10) + 3 * np.sin(numbers[:, 0]) + numbers[:, 10] % 4
    target += 2 * np.isnan(matrix[:, 5]) + (numbers[:, 11] % 5 == 2) + random.standard_normal(3000)
    settings = {
        "num_threads": 1,
        "num_leaves": 31,
        "seed": 1,
        "verbosity": -1,
        "min_data_per_group": 10,
        **params,
    }
    data = lightgbm.Dataset(
        matrix, target, categorical_feature=CATEGORICAL if categorical else "auto", params=settings
    )
    return lightgbm.train(settings, data, rounds).model_to_string()


def hard_rows(text: str, rows: int, seed: int) -> np.ndarray:
    """Rows whose values lie on thresholds, one step beside them, or where no training value was."""
    random = np.random.default_rng(seed)
    matrix = make_rows(rows, seed)
    columns = [
        int(v) for line in re.findall(r"^split_feature=(.*)$", text, re.MULTILINE) for v in line.split()
    ]
    numbers = [float(v) for line in re.findall(r"^threshold=(.*)$", text, re.MULTILINE) for v in line.split()]
    by_column = {column: [] for column in range(COLUMNS)}
    for column, threshold in zip(columns, numbers, strict=True):
        by_column[column] += [threshold, np.nextafter(threshold, np.inf), np.nextafter(threshold, -np.inf)]
    for column in range(COLUMNS):
        choices = np.concatenate([ODD_VALUES, by_column[column] * 3])
        is_hard = random.random(rows) < 0.6
        matrix[is_hard, column] = random.choice(choices, int(is_hard.sum()))
    return matrix


MODELS: dict[str, dict] = {
    "numbers": {"missing": False, "categorical": False},
    "numbers with missing": {"categorical": False},
    "categories": {"missing": False},
    "categories with missing": {},
    "zero as missing": {"zero_as_missing": True},
    "missing not used": {"use_missing": False},
    "one-hot categories": {"max_cat_to_onehot": 100},
    "1023 bins": {"max_bin": 1023},
    "15 bins": {"max_bin": 15},
    "two leaves": {"num_leaves": 2},
    "63 leaves": {"num_leaves": 63},
    "300 leaves": {"num_leaves": 300, "min_data_in_leaf": 2, "rounds": 8},
    "random forest": {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5},
    "dart": {"boosting": "dart", "rounds": 15},
    "quantile": {"objective": "quantile", "alpha": 0.9},
    "extra trees": {"extra_trees": True},
}


@pytest.fixture(scope="module", params=MODELS, ids=[name.replace(" ", "_") for name in MODELS])
def text(request: pytest.FixtureRequest) -> str:
    return train(**MODELS[request.param])


@pytest.fixture(scope="module")
def plain() -> str:
    return train()


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this process had loaded no kernel yet."""
    monkeypatch.setattr(predictor, "_kernels", {})


def wrapper(folder: Path, body: str) -> str:
    """A compiler of that behaviour; it answers `--version` like one."""
    script = folder / "compiler"
    script.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo wrapped && exit 0\n{body}\n')
    script.chmod(0o755)
    return str(script)


def counting(folder: Path) -> str:
    """A compiler that notes each run and gives the kernel that the real one made: compiling takes half a second."""
    made = folder / "made"
    made.write_bytes(real_kernel())
    takes_place = 'while [ "$1" != -o ]; do shift; done'
    return wrapper(folder, f'echo run >> "{folder}/runs"\n{takes_place}\ncp "{made}" "$2"')


@lru_cache
def real_kernel() -> bytes:
    assert COMPILER
    return predictor._build(COMPILER, predictor.SOURCE_FILE.read_bytes())


def runs(folder: Path) -> int:
    count = folder / "runs"
    return len(count.read_text().split()) if count.exists() else 0


@needs_compiler
def test_answers_are_lightgbms_to_the_last_bit(text: str) -> None:
    made = Predictor.compile(text)
    assert (made.engine, made.reason, made.feature_count) == (COMPILED, "", COLUMNS)
    rows = hard_rows(text, 2000, seed=7)
    wanted = lightgbm.Booster(model_str=text).predict(rows, num_threads=1)
    assert np.array_equal(made.predict(rows), wanted)
    assert [made.predict_row(row) for row in rows] == wanted.tolist()


@needs_compiler
def test_walked_form_gives_the_same_numbers(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor._Kernel, "has_strikes", False)
    rows = hard_rows(text, 500, seed=8)
    wanted = lightgbm.Booster(model_str=text).predict(rows, num_threads=1)
    assert np.array_equal(Predictor.compile(text).predict(rows), wanted)


@needs_compiler
def test_kernel_without_vector_instructions_gives_the_same_numbers(
    plain: str, tmp_path: Path, fresh: None
) -> None:
    # The compiler drops -march=native, as on a CPU that has only the instructions of its family.
    script = (
        f'for flag do shift; [ "$flag" = -march=native ] || set -- "$@" "$flag"; done\nexec {COMPILER} "$@"'
    )
    made = Predictor.compile(plain, compilers=[wrapper(tmp_path, script)])
    assert made.engine == COMPILED
    kernel = next(iter(predictor._kernels.values()))
    assert not kernel.has_strikes
    rows = hard_rows(plain, 5000, seed=9)
    assert np.array_equal(made.predict(rows), lightgbm.Booster(model_str=plain).predict(rows, num_threads=1))


@needs_compiler
def test_hundred_thousand_hard_rows_agree_to_the_last_bit(plain: str) -> None:
    rows = hard_rows(plain, 100_000, seed=10)
    wanted = lightgbm.Booster(model_str=plain).predict(rows, num_threads=1)
    assert np.array_equal(Predictor.compile(plain).predict(rows), wanted)


def test_constant_model_answers_its_constant() -> None:
    data = lightgbm.Dataset(np.zeros((30, 2)), np.full(30, 4.5), params={"verbosity": -1})
    text = lightgbm.train({"verbosity": -1}, data, 3).model_to_string()
    for compilers in (COMPILERS, ()):
        made = Predictor.compile(text, compilers=compilers)
        assert made.predict_row(np.zeros(2)) == 4.5
        assert made.predict(np.zeros((3, 2))).tolist() == [4.5] * 3


def test_without_a_compiler_lightgbms_c_call_answers_and_it_is_said(plain: str) -> None:
    made = Predictor.compile(plain, compilers=("no-such-compiler",))
    assert made.engine == LIGHTGBM
    assert "no C compiler was found (looked for no-such-compiler)" in made.reason
    rows = hard_rows(plain, 300, seed=11)
    wanted = lightgbm.Booster(model_str=plain).predict(rows, num_threads=1)
    assert [made.predict_row(row) for row in rows] == wanted.tolist()
    assert np.array_equal(made.predict(rows), wanted)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo stdlib.h not found >&2; exit 1", "failed: stdlib.h not found"),
        ("exit 0", "made no file"),
        ('while [ "$1" != -o ]; do shift; done; echo rubbish > "$2"', "cannot be loaded"),
    ],
)
def test_compiler_that_does_not_work_is_named_and_lightgbm_answers(
    plain: str, tmp_path: Path, fresh: None, body: str, said: str
) -> None:
    made = Predictor.compile(plain, compilers=[wrapper(tmp_path, body)])
    assert made.engine == LIGHTGBM
    assert said in made.reason
    row = make_rows(1, seed=3)
    assert made.predict_row(row[0]) == lightgbm.Booster(model_str=plain).predict(row)[0]


@pytest.mark.parametrize("compilers", [COMPILERS, ()], ids=["compiled", "lightgbm"])
def test_row_that_does_not_fit_is_refused(plain: str, compilers: tuple[str, ...]) -> None:
    made = Predictor.compile(plain, compilers=compilers)
    good = np.zeros(COLUMNS)
    for row in (
        np.zeros(COLUMNS - 1),
        np.zeros(COLUMNS + 1),
        np.zeros(0),
        np.zeros((1, COLUMNS)),
        np.array(0.0),
        good.astype(np.float32),
        good.astype(np.int64),
        good.astype(">f8"),
        good.astype(object),
        good.astype(complex)[: COLUMNS // 2],
        good.tolist(),
        None,
        bytes(8 * COLUMNS),
    ):
        with pytest.raises(SchemaError, match=f"needed is one dimension of {COLUMNS} float64"):
            made.predict_row(row)  # type: ignore[arg-type]
    assert made.predict_row(good) == lightgbm.Booster(model_str=plain).predict(good[None, :])[0]


@pytest.mark.parametrize("compilers", [COMPILERS, ()], ids=["compiled", "lightgbm"])
def test_row_and_matrix_of_any_memory_order_are_read(plain: str, compilers: tuple[str, ...]) -> None:
    made = Predictor.compile(plain, compilers=compilers)
    rows = make_rows(50, seed=4)
    wanted = made.predict(rows).tolist()
    by_column = np.asfortranarray(rows)
    assert made.predict(by_column).tolist() == wanted
    assert [made.predict_row(row) for row in by_column] == wanted
    backwards = np.ascontiguousarray(rows[:, ::-1])[:, ::-1]
    assert [made.predict_row(row) for row in backwards] == wanted
    rows.flags.writeable = False
    assert [made.predict_row(row) for row in rows] == wanted
    assert made.predict(rows[:0]).shape == (0,)


def test_matrix_of_another_width_is_refused(plain: str) -> None:
    made = Predictor.compile(plain)
    for shape in ((3, COLUMNS - 1), (COLUMNS,), (2, 2, COLUMNS)):
        with pytest.raises(SchemaError, match=rf"needed is \(rows, {COLUMNS}\)"):
            made.predict(np.zeros(shape))


def test_cut_text_is_refused_before_anything_is_loaded(plain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "_load_kernel", lambda *_: pytest.fail("loaded"))
    monkeypatch.setattr(lightgbm, "Booster", lambda *_, **__: pytest.fail("loaded"))
    for length in (0, 10, len(plain) // 3, len(plain) // 2):
        with pytest.raises(ModelFileError, match="is no LightGBM text that can be used"):
            Predictor.compile(plain[:length])


@needs_compiler
def test_altered_text_is_refused_or_answered_but_never_ends_the_process() -> None:
    text = train(rounds=3)
    end = text.index("\nend of trees\n")
    random = np.random.default_rng(0)
    rows = hard_rows(text, 50, seed=12)
    outcomes = {"refused": 0, "answered": 0}
    for _ in range(400):
        place = int(random.integers(0, end))
        changed = text[:place] + str(random.choice(list("0123456789-. \n=e"))) + text[place + 1 :]
        try:
            made = Predictor.compile(changed)
        except ModelFileError:
            outcomes["refused"] += 1
        else:
            outcomes["answered"] += 1
            if made.feature_count == COLUMNS:
                made.predict(rows)
    assert outcomes["refused"] > 20
    assert outcomes["answered"] > 20


@needs_compiler
def test_twenty_models_and_four_threads_live_in_one_process() -> None:
    texts = [train(rounds=5, seed=seed) for seed in range(20)]
    rows = make_rows(200, seed=5)
    wanted = [lightgbm.Booster(model_str=text).predict(rows, num_threads=1).tolist() for text in texts]
    made = [Predictor.compile(text) for text in texts]

    def ask(thread: int) -> bool:
        same = True
        for turn in range(40):
            place = (thread + turn) % 20
            same &= [made[place].predict_row(row) for row in rows] == wanted[place]
            same &= made[place].predict(rows).tolist() == wanted[place]
        return same

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(4)))


@needs_compiler
def test_row_function_outlives_its_predictor(plain: str) -> None:
    row = make_rows(1, seed=6)[0]
    function = Predictor.compile(plain).predict_row
    for seed in range(5):
        Predictor.compile(train(rounds=2, seed=seed))
    gc.collect()
    assert function(row) == lightgbm.Booster(model_str=plain).predict(row[None, :])[0]


@needs_compiler
def test_kernel_is_compiled_once_a_folder(plain: str, tmp_path: Path, fresh: None) -> None:
    compiler, cache = counting(tmp_path), tmp_path / "cache"
    for _ in range(3):
        assert Predictor.compile(plain, cache_dir=cache, compilers=[compiler]).engine == COMPILED
        predictor._kernels.clear()  # as a new process would start
    assert runs(tmp_path) == 1
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert [file.suffix for file in cache.iterdir()] == [".so"]


@needs_compiler
def test_without_a_folder_a_process_compiles_once_and_leaves_no_file(
    plain: str, tmp_path: Path, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = tmp_path / "tmp"
    private.mkdir()
    monkeypatch.setattr(predictor.tempfile, "tempdir", str(private))
    for _ in range(3):
        assert Predictor.compile(plain, compilers=[counting(tmp_path)]).engine == COMPILED
    assert runs(tmp_path) == 1
    assert not list(private.iterdir())


@needs_compiler
@pytest.mark.parametrize("damage", ["cut", "empty", "altered", "writable by others"])
def test_damaged_kernel_is_compiled_anew_and_not_loaded(
    plain: str, tmp_path: Path, fresh: None, damage: str
) -> None:
    compiler, cache = counting(tmp_path), tmp_path / "cache"
    Predictor.compile(plain, cache_dir=cache, compilers=[compiler])
    (kernel,) = cache.iterdir()
    content = kernel.read_bytes()
    # A new file: the loaded one is mapped into this process, and cutting it would end it.
    kernel.unlink()
    changed = {"cut": content[: len(content) // 2], "empty": b"", "altered": content[:-1] + b"?"}
    kernel.write_bytes(changed.get(damage, content))
    kernel.chmod(0o666 if damage == "writable by others" else 0o600)
    predictor._kernels.clear()
    made = Predictor.compile(plain, cache_dir=cache, compilers=[compiler])
    assert made.engine == COMPILED
    assert runs(tmp_path) == 2
    assert kernel.read_bytes() == content
    assert stat.S_IMODE(kernel.stat().st_mode) == 0o600


@needs_compiler
def test_kernel_of_another_cpu_or_source_is_not_taken(
    plain: str, tmp_path: Path, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, cache = counting(tmp_path), tmp_path / "cache"
    Predictor.compile(plain, cache_dir=cache, compilers=[compiler])
    predictor._kernels.clear()
    monkeypatch.setattr(predictor, "_cpu", lambda: "another CPU")
    Predictor.compile(plain, cache_dir=cache, compilers=[compiler])
    assert runs(tmp_path) == 2
    assert len(list(cache.iterdir())) == 2


@needs_compiler
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_folder_that_others_can_write_is_refused(plain: str, tmp_path: Path, mode: int) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(mode)
    with pytest.raises(SettingsError, match=r"others can write it .*chmod 700"):
        Predictor.compile(plain, cache_dir=cache)
    assert not list(cache.iterdir())


@needs_compiler
def test_folder_below_one_that_anybody_can_write_is_refused(plain: str, tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(SettingsError, match="others can replace it through"):
        Predictor.compile(plain, cache_dir=open_to_all / "cache")
    open_to_all.chmod(0o1777)  # the sticky bit keeps others from renaming what is not theirs
    assert Predictor.compile(plain, cache_dir=open_to_all / "cache").engine == COMPILED


def test_folder_that_is_a_file_is_refused(plain: str, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(SettingsError, match="cannot be used"):
        Predictor.compile(plain, cache_dir=tmp_path / "cache")


@needs_compiler
def test_processes_that_compile_at_once_leave_one_sound_kernel(plain: str, tmp_path: Path) -> None:
    (tmp_path / "model.txt").write_text(plain)
    program = (
        "import sys, numpy\nfrom pathlib import Path\nfrom warpgauge.latency.predictor import Predictor\n"
        "made = Predictor.compile(Path(sys.argv[1]).read_text(), cache_dir=Path(sys.argv[2]))\n"
        f"print(made.engine, made.predict_row(numpy.zeros({COLUMNS})))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "model.txt"), str(tmp_path / "cache")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(3)
    ]
    said = {process.communicate()[0].strip() for process in started}
    wanted = lightgbm.Booster(model_str=plain).predict(np.zeros((1, COLUMNS)))[0]
    assert said == {f"{COMPILED} {wanted!s}"}
    assert [file.suffix for file in (tmp_path / "cache").iterdir()] == [".so"]
