"""The command line itself: help, exit codes, and a standard output that holds the answer and nothing else."""

import argparse
import inspect
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.__main__ import build_parser, main
from tests.fakes import write_launches
from warpgauge.errors import ServiceUnavailableError
from warpgauge.settings import PROJECT_ROOT

GRAPH = str(PROJECT_ROOT / "tests" / "data" / "launches" / "plain.dot")
HEAVY = [
    "prefect",
    "mlflow",
    "great_expectations",
    "torch",
    "transformers",
    "lightgbm",
    "sklearn",
    "scipy",
    "pandas",
    "polars",
    "pyarrow",
    "deltalake",
    "matplotlib",
    "numpy",
    "pydantic",
    "pydantic_settings",
]


def subcommands(parser: argparse.ArgumentParser) -> dict[str, tuple[argparse.ArgumentParser, str | None]]:
    """Direct subcommands of a parser, each with its line in the parser's help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            lines = {entry.dest: entry.help for entry in action._choices_actions}
            return {name: (child, lines.get(name)) for name, child in action.choices.items()}
    return {}


def all_commands(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser, str | None]]:
    for name, (child, line) in subcommands(parser).items():
        yield (*words, name), child, line
        yield from all_commands(child, (*words, name))


COMMANDS = list(all_commands(build_parser()))


def run(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command in this process."""
    capfd.readouterr()
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    said = capfd.readouterr()
    return code, said.out, said.err


def only_document(text: str) -> Any:
    """The one JSON document that a text is: strict, on one line, with nothing around it."""
    assert text.endswith("\n")
    assert text.count("\n") == 1
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def in_a_process(code: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=PROJECT_ROOT,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """The command line sets what it needs for its process; other tests are not to see it."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def answer(project: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `doctor` answers, to be changed by the test."""
    from tasks import inspection

    found: dict[str, Any] = {"python": "3", "platform": "x", "items": []}
    monkeypatch.setattr(inspection, "inspect_machine", lambda: found)
    return found


def test_every_command_of_the_product_is_there() -> None:
    assert {" ".join(words) for words, child, _ in COMMANDS if not subcommands(child)} >= {
        "run",
        "collect launches",
        "collect table",
        "collect documents",
        "collect telemetry",
        "validate",
        "train latency",
        "train docquality",
        "monitor",
        "predict latency",
        "score documents",
        "models list",
        "models compare",
        "models promote",
        "models rollback",
        "deploy",
        "doctor",
    }


@pytest.mark.parametrize(
    ("words", "parser", "line"), COMMANDS, ids=[" ".join(words) for words, _, _ in COMMANDS]
)
def test_command_explains_itself_in_one_line_and_each_of_its_options(
    words: tuple[str, ...],
    parser: argparse.ArgumentParser,
    line: str | None,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert line
    assert line[0].isupper()
    assert "\n" not in line
    assert not line.endswith(".")
    assert all(
        action.help for action in parser._actions if not isinstance(action, argparse._SubParsersAction)
    )
    if not subcommands(parser):
        assert any("--json" in action.option_strings for action in parser._actions)
    code, out, err = run([*words, "--help"], capfd)
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: warpgauge {' '.join(words)}")


def test_help_loads_no_heavy_library() -> None:
    code = (
        "import sys\n"
        "from flows.__main__ import main\n"
        f"for words in {[words for words, _, _ in COMMANDS]!r} + [()]:\n"
        "    try:\n"
        "        main([*words, '--help'])\n"
        "    except SystemExit as stop:\n"
        "        assert not stop.code\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = in_a_process(code, stdout=subprocess.PIPE)
    assert done.stdout.endswith("\n[]\n"), done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["bogus"],
        ["collect"],
        ["collect", "launches"],
        ["doctor", "--bogus"],
        ["predict", "latency"],
        ["predict", "latency", "--graph", "a", "--rows", "b"],
        ["monitor", "--every-minutes", "0"],
        ["monitor", "--every-minutes", "nan"],
        ["monitor", "--every-minutes", "soon"],
        ["collect", "table"],
        ["train", "latency", "--trials", "-1"],
        ["train", "latency", "--trials", "2.5"],
        ["train", "latency", "--trials", "9" * 5000],
    ],
)
def test_wrong_command_line_is_exit_2_and_one_document(
    arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(arguments, capfd)
    assert (code, out) == (2, "")
    assert "usage: warpgauge" in err
    code, out, err = run([*arguments, "--json"], capfd)
    document = only_document(out)
    assert code == 2
    assert document["error"] == "UsageError"
    assert document["message"] in err


def test_answer_is_one_document_whatever_libraries_print(
    answer: dict[str, Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks import inspection

    def noisy() -> dict[str, Any]:
        print("a library's word")  # noqa: T201
        os.write(1, b"a C library's word\n")
        subprocess.run([sys.executable, "-S", "-c", "print('a process of its own')"], check=True)
        return answer

    answer["items"] = [float("nan"), Path("a"), "\udcff"]
    monkeypatch.setattr(inspection, "inspect_machine", noisy)
    code, out, err = run(["doctor", "--json"], capfd)
    assert code == 0
    assert only_document(out)["items"] == [None, "a", "\udcff"]
    for words in ("a library's word", "a C library's word", "a process of its own"):
        assert words in err


def test_refused_input_is_exit_2_with_one_message_and_one_document(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(["validate", str(project / "absent.csv"), "--json"], capfd)
    document = only_document(out)
    assert (code, document["error"]) == (2, "SourceFileError")
    assert "absent.csv: neither a table" in document["message"]
    assert err == f"warpgauge: {document['message']}\n"
    code, out, err = run(["predict", "latency", "--rows", ""], capfd)
    assert (code, out) == (2, "")
    assert "found a directory" in err


def test_service_that_is_away_is_exit_3_with_one_document(
    project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "file").write_text("")
    monkeypatch.setenv("WARPGAUGE_MLFLOW_URI", f"sqlite:///{project}/file/mlflow.db")
    code, out, err = run(["models", "list", "--json"], capfd)
    assert (code, only_document(out)["error"]) == (3, "ServiceUnavailableError")
    assert "Traceback" not in err


def test_registry_without_a_model_is_an_answer_and_a_prediction_is_refused(
    registry: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(["models", "list", "--json"], capfd)
    assert code == 0
    assert [model["champion"] for model in only_document(out)["models"]] == [None, None]
    code, out, err = run(["predict", "latency", "--graph", GRAPH, "--json"], capfd)
    assert (code, only_document(out)["error"]) == (2, "ModelNotFoundError")
    assert "warpgauge run" in err


@pytest.mark.parametrize("arguments", [["doctor"], ["deploy"], ["models", "list"], ["monitor", "--once"]])
def test_mistyped_variable_stops_every_command(
    project: Path, arguments: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPGAUGE_DATADIR", "x")
    code, out, err = run([*arguments, "--json"], capfd)
    assert (code, only_document(out)["error"]) == (2, "SettingsError")
    assert "unknown setting WARPGAUGE_DATADIR" in err


def test_libraries_are_quiet_unless_the_person_says_otherwise(
    answer: dict[str, Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "DEBUG")
    monkeypatch.delenv("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", raising=False)
    run(["doctor"], capfd)
    assert os.environ["PREFECT_LOGGING_LEVEL"] == "DEBUG"
    assert os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] == "CRITICAL"


def test_something_refused_is_exit_3(answer: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    answer["refused"] = ["a.csv: cut"]
    code, out, _ = run(["doctor"], capfd)
    assert code == 3
    assert out.endswith("REFUSED: a.csv: cut\n")
    assert run(["doctor", "--json"], capfd)[0] == 3


def test_store_is_the_same_from_any_working_directory(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks import inspection

    # Looking up every installed package takes a second and says nothing about the store.
    monkeypatch.setattr(inspection, "_package", lambda _, name, lack: inspection._item(name, None, lack))
    monkeypatch.setenv("WARPGAUGE_DATA_DIR", "a-folder-that-no-one-made")
    answers = []
    for folder in (PROJECT_ROOT, tmp_path):
        monkeypatch.chdir(folder)
        code, out, _ = run(["doctor", "--json"], capfd)
        assert code == 0
        answers.append({item["name"]: item["found"] for item in only_document(out)["items"]})
    assert answers[0] == answers[1]
    assert answers[0]["Tables"].startswith(str(PROJECT_ROOT / "a-folder-that-no-one-made"))
    assert not (PROJECT_ROOT / "a-folder-that-no-one-made").exists()
    assert list(tmp_path.iterdir()) == []


BUG = (
    "import sys\n"
    "from tasks import inspection\n"
    "from flows.__main__ import main\n"
    "def inspect_machine():\n"
    "    raise RuntimeError('a bug')\n"
    "inspection.inspect_machine = inspect_machine\n"
    "sys.exit(main(sys.argv[1:]))\n"
)


def test_bug_shows_its_traceback_and_is_exit_1(project: Path) -> None:
    done = in_a_process(BUG, "doctor", "--json", stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" in done.stderr
    assert "RuntimeError: a bug" in done.stderr


MAIN = "import sys; from flows.__main__ import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--help"], 0), (["bogus", "--json"], 2), (["validate", "absent", "--json"], 2)]
)
def test_reader_that_left_early_is_no_failure(project: Path, arguments: list[str], code: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = in_a_process(MAIN, *arguments, stdout=writer)
    os.close(writer)
    assert done.returncode == code
    assert "Broken" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_answer_that_cannot_be_written_is_exit_3(project: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = in_a_process(MAIN, "validate", "absent", "--json", stdout=full)
    assert done.returncode == 3
    assert "the answer could not be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_closed_output_is_no_bug(project: Path) -> None:
    command = ["sh", "-c", '"$0" -m flows validate absent --json >&-', sys.executable]
    done = subprocess.run(
        command, cwd=PROJECT_ROOT, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("warpgauge: absent: neither a table")


def test_sign_that_the_terminal_cannot_show_costs_no_answer(
    answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.BytesIO()
    answer["python"] = "é \udcff \x1b[2J"
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    assert main(["doctor"]) == 0
    assert shown.getvalue().startswith(rb"Python \xe9 ? ?[2J on x")


def test_interrupted_command_says_that_it_can_go_on(
    answer: dict[str, Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks import inspection

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(inspection, "inspect_machine", interrupt)
    code, out, err = run(["doctor"], capfd)
    assert (code, out) == (130, "")
    assert "run the command again" in err


def test_monitor_goes_on_after_a_service_was_away_and_ends_with_the_person(
    project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = iter([{"decisions": []}, ServiceUnavailableError("no server"), {"decisions": []}])
    pauses: list[float] = []

    def monitor_drift() -> dict[str, Any]:
        outcome = next(rounds)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "flows.monitor_drift", SimpleNamespace(monitor_drift=monitor_drift))
    monkeypatch.setattr("time.sleep", sleep)
    code, out, err = run(["monitor", "--every-minutes", "2"], capfd)
    assert (code, out, pauses) == (130, "", [120, 120, 120])
    assert err.count("no signal could be measured") == 2
    assert "no server; next round in 2 minutes" in err

    rounds = iter([{"decisions": [], "refused": ["residuals: no champion"]}])
    assert run(["monitor", "--once"], capfd)[0] == 3
    code, out, _ = run(["monitor", "--json"], capfd)
    assert (code, only_document(out)["error"]) == (2, "SettingsError")


def test_monitor_goes_on_after_its_prefect_server_was_away(
    project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx

    rounds = iter([RuntimeError("Failed to reach API at http://there/api/"), httpx.ReadTimeout("")])

    def monitor_drift() -> dict[str, Any]:
        raise next(rounds, KeyboardInterrupt())

    monkeypatch.setenv("PREFECT_API_URL", "http://user:unspoken@there/api")
    monkeypatch.setitem(sys.modules, "flows.monitor_drift", SimpleNamespace(monitor_drift=monitor_drift))
    monkeypatch.setattr("time.sleep", lambda _: None)
    code, out, err = run(["monitor", "--every-minutes", "2"], capfd)
    assert (code, out) == (130, "")
    assert err.count("next round in 2 minutes") == 2
    assert "Failed to reach API" in err
    assert "ReadTimeout" in err
    assert "unspoken" not in err


@pytest.mark.parametrize("arguments", [["collect", "launches", "simulator:0"], ["run"], ["deploy"]])
def test_prefect_server_that_is_away_is_exit_3_with_one_document(
    project: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Port 1 is nobody's, so the connection is refused at once.
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    done = in_a_process(MAIN, *arguments, "--json", stdout=subprocess.PIPE)
    document = only_document(done.stdout)
    assert (done.returncode, document["error"]) == (3, "ServiceUnavailableError")
    assert "Prefect server http://127.0.0.1:1/api cannot be used" in document["message"]
    assert "PREFECT_API_URL" in document["message"]
    assert "Traceback" not in done.stderr


def test_time_between_rounds_that_is_no_number_is_said_so(capfd: pytest.CaptureFixture[str]) -> None:
    _, _, err = run(["monitor", "--every-minutes", "soon"], capfd)
    assert "'soon' is no time between rounds; a number above 0 is needed" in err


def test_gpu_of_the_launches_can_be_named_for_the_main_job(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.collect_sources import collect_sources
    from flows.run_pipeline import run_pipeline

    for flow in (run_pipeline, collect_sources):
        assert "gpu_name" in inspect.signature(flow.fn).parameters
    asked: dict[str, Any] = {}
    monkeypatch.setitem(sys.modules, "flows.run_pipeline", SimpleNamespace(run_pipeline=asked.update))
    options = build_parser().parse_args(["run", "--launches", "a.csv", "--gpu", "Tesla T4"])
    options.run(options)
    assert (asked["launches"], asked["gpu_name"]) == (["a.csv"], "Tesla T4")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["train", "latency", "--folder", "."], "name the spec by --table"),
        (["train", "latency", "--table", "absent.toml"], "absent.toml: no such file"),
        (["predict", "latency", "--graph", GRAPH, "--model", "latency-x"], "a graph is none"),
        (
            ["predict", "latency", "--rows", "x.csv", "--model", "latency-x"],
            "the models are launch-latency, doc-quality",
        ),
        (["predict", "latency", "--rows", "x.csv", "--model", "doc-quality"], "scores documents"),
        (["models", "rollback", "latency-x"], "the models are launch-latency, doc-quality"),
    ],
)
def test_option_that_fits_nothing_is_exit_2_with_what_would(
    registry: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    reason: str,
) -> None:
    from flows import train_latency

    # The flow itself needs a Prefect server; what it calls does not.
    monkeypatch.setitem(
        sys.modules, "flows.train_latency", SimpleNamespace(train_latency=train_latency.train_latency.fn)
    )
    code, out, _ = run([*arguments, "--json"], capfd)
    assert code == 2
    assert reason in only_document(out)["message"]


def test_options_of_a_table_reach_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks import prediction

    asked: dict[str, Any] = {}
    monkeypatch.setitem(sys.modules, "flows.train_latency", SimpleNamespace(train_latency=asked.update))
    options = ["train", "latency", "--table", "a.toml", "--folder", "b", "--trials", "3", "--force"]
    parsed = build_parser().parse_args(options)
    parsed.run(parsed)
    assert asked == {"table": "a.toml", "folder": "b", "trials": 3, "force": True, "allow_simulated": False}
    given: list[Any] = []
    monkeypatch.setitem(
        sys.modules, "flows.collect_table", SimpleNamespace(collect_table=lambda *words: given.append(words))
    )
    monkeypatch.setattr(prediction, "predict_rows", lambda *words: given.append(words))
    for words in (
        ["collect", "table", "a.toml", "--folder", "b"],
        ["predict", "latency", "--rows", "r.csv", "--model", "latency-x", "--explain"],
    ):
        parsed = build_parser().parse_args(words)
        parsed.run(parsed)
    assert given == [("a.toml", "b"), ("r.csv", None, None, True, "latency-x")]


def test_make_hands_the_gpu_to_the_main_job() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "run", "LAUNCHES=a.csv", "GPU=Tesla T4"],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "warpgauge run --launches a.csv" in done.stdout
    assert '--gpu "Tesla T4"' in done.stdout


def test_options_reach_the_work(
    project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.collection import collect_launches

    # The flow itself needs a Prefect server; what it calls does not.
    monkeypatch.setitem(
        sys.modules, "flows.collect_launches", SimpleNamespace(collect_launches=collect_launches)
    )
    path = write_launches(project, range(1, 4)).rename(project / "trials.csv")
    arguments = ["collect", "launches", str(path), str(project / "absent"), "--gpu", "Tesla T4", "--json"]
    code, out, _ = run(arguments, capfd)
    document = only_document(out)
    assert (code, document["added"], len(document["refused"])) == (3, 15, 1)
    path.write_text(path.read_text().replace("8.000", "eight", 1))
    assert run(["collect", "launches", str(path)], capfd)[0] == 2
    code, out, _ = run(["collect", "launches", str(path), "--keep-whole"], capfd)
    assert code == 3
    assert "SALVAGED: " in out
