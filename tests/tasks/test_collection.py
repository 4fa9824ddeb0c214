"""Whatever a source is, the good ones beside it arrive once and the bad one is named with its reason."""

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from tasks import collection
from tasks.collection import (
    choose_launch_sources,
    collect_documents,
    collect_launches,
    collect_telemetry,
    fetch_header_wheels,
)
from tasks.presentation import exit_code
from tasks.storage import Store, cache_dir
from tests.fakes import write_launches, write_reports
from warpgauge.errors import (
    NoDataError,
    ServiceUnavailableError,
    SettingsError,
    SourceUnavailableError,
)

ROOT = Path(__file__).parents[2]
PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)


def rows(table: str) -> pl.DataFrame:
    return Store().read(table).collect()


def launches_file(folder: Path, seed: int = 0) -> Path:
    return write_launches(folder, range(1, 11), trials=2, seed=seed)


def bad_files(folder: Path) -> dict[Path, str]:
    """Broken files by path, each with words of the reason it must be refused for."""
    whole = launches_file(folder, seed=99).read_bytes()
    found = {
        "cut.csv.gz": (gzip.compress(whole)[:-40], "gzip stream stops"),
        "empty.csv": (b"", "empty"),
        "image.csv": (PNG, "PNG image"),
        "page.csv": (b"<!DOCTYPE html><html>not found</html>", "HTML page"),
        "columns.csv": (b"a,b\n1,2\n", "columns 'a,b'"),
        "row.csv": (whole.replace(b"8.000", b"eight", 1), "row 2, column instantiate_us"),
        "huge.csv": (whole + b"\n" * 1_100_000, "more than 1,000,000 bytes"),
        "bomb.csv.gz": (gzip.compress(whole + b"\n" * 5_000_000), "more than 1,000,000 bytes"),
    }
    bad: dict[Path, str] = {folder / "absent.csv": "no such file", folder: "found a directory"}
    for name, (content, reason) in found.items():
        (folder / name).write_bytes(content)
        bad[folder / name] = reason
    os.mkfifo(folder / "pipe.csv")
    bad[folder / "pipe.csv"] = "device, pipe or socket"
    bad[folder / "nul\0.csv"] = "cannot be opened"
    bad[folder / os.fsdecode(b"\xff.csv")] = "not UTF-8"
    (folder / os.fsdecode(b"\xff.csv")).write_bytes(whole)
    return bad


def test_good_file_is_collected_and_each_bad_one_beside_it_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPGAUGE_FETCH_SIZE_LIMIT_MB", "1")
    bad = bad_files(project)
    good = launches_file(project)
    result = collect_launches([*map(str, bad), str(good)])
    assert (result["offered"], result["added"]) == (20, 20)
    assert exit_code(result) == 3
    assert len(result["refused"]) == len(bad)
    for text, (path, reason) in zip(result["refused"], bad.items(), strict=True):
        assert reason in text
        assert str(path) in text or ascii(str(path)) in text
        assert text.count(path.name) == 1 or path == project
    assert rows("launches")["source_name"].unique().to_list() == [good.name]

    with pytest.raises(NoDataError) as caught:
        collect_launches(list(map(str, bad)))
    assert all(reason in str(caught.value) for reason in bad.values())
    assert caught.value.exit_code == 2
    assert rows("launches").height == 20


def test_glob_stands_for_its_files_and_one_without_a_match_is_refused(project: Path) -> None:
    folder = project / "some" / "where"
    folder.mkdir(parents=True)
    for seed in (1, 2):
        launches_file(folder, seed)
    named_like_a_glob = folder / "line[1].csv"
    launches_file(folder, 3).rename(named_like_a_glob)
    (folder / "folder.csv").mkdir()
    result = collect_launches([f"{project}/**/*straight*.csv", f"{folder}/*.csv", f"{folder}/*.txt"])
    assert [Path(report["source"]).name for report in result["sources"]].count(named_like_a_glob.name) == 1
    assert len(result["sources"]) == 4
    assert (result["added"], len(result["refused"])) == (60, 1)
    assert "*.txt: no such file" in result["refused"][0]
    assert collect_launches([str(named_like_a_glob)])["offered"] == 20
    with pytest.raises(NoDataError, match="no source was named"):
        collect_launches([])


def test_same_content_under_any_name_is_collected_once(project: Path, server: str) -> None:
    plain = launches_file(project)
    packed = project / f"{plain.name}.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    copy = project / "copy.txt"
    copy.write_bytes(plain.read_bytes())
    first = collect_launches([str(plain)])
    version = Store().version("launches")
    SERVED["/again/trials.csv"] = packed.read_bytes()
    again = collect_launches([str(plain), str(packed), str(copy), f"{server}/again/trials.csv"])
    assert (first["added"], again["offered"], again["added"]) == (20, 80, 0)
    assert again["version"] == version
    assert exit_code(again) == 0


def test_keep_whole_keeps_the_intact_rows_and_says_what_was_lost(project: Path) -> None:
    path = launches_file(project)
    path.write_text(path.read_text().replace("8.000", "eight", 1))
    with pytest.raises(NoDataError, match="--keep-whole"):
        collect_launches([str(path)])
    result = collect_launches([str(path)], keep_whole=True)
    assert (result["added"], result["refused"]) == (19, [])
    assert len(result["salvaged"]) == 1
    assert f"{path}: row 2" in result["salvaged"][0]
    assert exit_code(result) == 3


def test_simulator_takes_a_seed_and_nothing_else(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_simulated(monkeypatch)
    result = collect_launches(
        ["simulator:7", "simulator:x", "simulator:²", "simulator:-1", "simulator:" + "9" * 5000]
    )
    assert len(result["refused"]) == 4
    assert all("whole number" in text for text in result["refused"])
    frame = rows("launches")
    assert frame["is_simulated"].all()
    assert frame.height == result["added"] > 0
    assert collect_launches(["simulator:7"])["added"] == 0


def few_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    from warpgauge.launches import simulator

    whole = simulator.simulate_launches
    monkeypatch.setattr(
        simulator, "simulate_launches", lambda seed: whole(seed, lengths=range(1, 20, 6), trials=2)
    )


def test_simulated_launches_are_chosen_only_where_nothing_was_measured(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_simulated(monkeypatch)
    chosen = choose_launch_sources(None)
    assert chosen["sources"] == ["simulator:0"]
    assert "SIMULATED" in chosen["why"]
    collect_launches(chosen["sources"])
    assert choose_launch_sources([]) == chosen
    assert choose_launch_sources(["a.csv"])["sources"] == ["a.csv"]
    collect_launches([str(launches_file(project))])
    chosen = choose_launch_sources(None)
    assert chosen["sources"] == []
    assert "20 measured" in chosen["why"]


def test_gpu_that_the_file_does_not_name_is_taken_from_the_caller(project: Path) -> None:
    path = launches_file(project).rename(project / "trials.csv")
    collect_launches([str(path)], gpu_name="Tesla T4")
    assert rows("launches")["gpu_name"].unique().to_list() == ["Tesla T4"]


# --- addresses -----------------------------------------------------------------------------------------

SERVED: dict[str, bytes] = {}
RELEASE = threading.Event()


class Handler(BaseHTTPRequestHandler):
    """Answers as good and bad servers do; the path says how."""

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path == "/garbage":
            self.wfile.write(b"this is no HTTP\r\n\r\n")
            return
        if path not in SERVED and path not in ("/cut.csv", "/stall.csv", "/drip.csv", "/endless.csv"):
            self.send_error(404)
            return
        content = SERVED.get(path, b"x" * 1000)
        self.send_response(200)
        if path == "/cut.csv":
            self.send_header("Content-Length", "5000")
        elif path in SERVED:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        try:
            if path == "/drip.csv":
                while not RELEASE.wait(0.05):
                    self.wfile.write(b"1, ")
            elif path == "/endless.csv":
                while not RELEASE.is_set():
                    self.wfile.write(b"\n" * 100_000)
            else:
                self.wfile.write(content)
                self.wfile.flush()
            if path == "/stall.csv":
                RELEASE.wait(20)
        except ConnectionError:
            return

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a web server on this machine that serves `SERVED` and misbehaves on other paths."""
    monkeypatch.setenv("no_proxy", "*")
    SERVED.clear()
    RELEASE.clear()
    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.daemon_threads = True
    threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{running.server_address[1]}"
    RELEASE.set()
    running.shutdown()
    running.server_close()


def test_address_is_collected_under_the_name_of_its_file(project: Path, server: str) -> None:
    content = launches_file(project).read_bytes()
    SERVED["/a%20b/NVIDIA-A100-SXM4-80GB-cuda-12.8%20line.csv"] = gzip.compress(content)
    SERVED["/"] = content.replace(b"8.000", b"9.000")
    SERVED["/" + "n" * 400] = content.replace(b"8.000", b"7.000")
    result = collect_launches(
        [
            f"{server}/a%20b/NVIDIA-A100-SXM4-80GB-cuda-12.8%20line.csv?token=secret#part",
            f"{server}/",
            f"{server}/{'n' * 400}",
        ]
    )
    assert (result["added"], result["refused"]) == (60, [])
    frame = rows("launches")
    assert set(frame["source_name"]) == {"NVIDIA-A100-SXM4-80GB-cuda-12.8 line.csv", "download"}
    assert frame["gpu_name"].drop_nulls().unique().to_list() == ["NVIDIA A100-SXM4-80GB"]


def test_answers_that_are_no_file_are_refused_and_nothing_of_them_stays(
    project: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPGAUGE_FETCH_TIMEOUT_S", "1")
    monkeypatch.setenv("WARPGAUGE_FETCH_SIZE_LIMIT_MB", "1")
    monkeypatch.setattr("tempfile.tempdir", str(project))
    SERVED["/page"] = b"<html><body>log in first</body></html>"
    SERVED["/large.csv"] = b"\n" * 1_500_000
    row = launches_file(project).read_bytes().replace(b"8.000", b"eight", 1)
    SERVED["/row.csv"] = row
    bad = {
        f"{server}/absent.csv": "404",
        f"{server}/cut.csv": "ended after 1,000 of 5,000 bytes",
        f"{server}/stall.csv": "timed out",
        f"{server}/drip.csv": "too slow to end",
        f"{server}/endless.csv": "more than 1,000,000 bytes",
        f"{server}/large.csv": "more than 1,000,000 bytes",
        f"{server}/garbage": "this is no HTTP",
        f"{server}/page": "HTML page",
        f"{server}/row.csv": "row 2",
        "http://127.0.0.1:1/x.csv": "refused",
        "http://": "no host",
        "http://user:secret@host/x": "cannot be fetched",
        f"file://{project}/x.csv": "only paths",
        "ftp://127.0.0.1/x.csv": "only paths",
    }
    with pytest.raises(NoDataError) as caught:
        collect_launches(list(bad))
    reasons = str(caught.value).removeprefix("nothing could be collected into launches: ").split("; http")
    for address, reason in bad.items():
        assert any(address.removeprefix("http") in text and reason in text for text in reasons), address
    assert not list(project.glob("warpgauge-*"))
    assert Store().version("launches") is None


# --- interruptions -------------------------------------------------------------------------------------

KILLED_COLLECTOR = """
import os, signal, sys
import deltalake
from tasks import collection, storage
from tasks.storage import Store
from warpgauge.launches import source

moment, *sources = sys.argv[1:]
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
calls = 0

def on_second_call(before, original, after):
    def wrapped(*arguments, **options):
        global calls
        calls += 1
        if calls == 2:
            before(*arguments)
        answer = original(*arguments, **options)
        if calls == 2:
            after()
        return answer
    return wrapped

def leave_an_uncommitted_file(table, rows, *rest):
    import pyarrow.parquet
    pyarrow.parquet.write_table(rows, os.path.join(table.table_uri.removeprefix("file://"), "part-0.parquet"))
    die()

nothing = lambda *arguments: None
if moment == "while-reading":
    source.read_launches = on_second_call(lambda *a: die(), source.read_launches, nothing)
elif moment == "between-read-and-append":
    Store.append = on_second_call(lambda *a: die(), Store.append, nothing)
elif moment == "between-data-and-commit":
    deltalake.write_deltalake = on_second_call(leave_an_uncommitted_file, deltalake.write_deltalake, nothing)
elif moment == "after-the-commit":
    Store.append = on_second_call(nothing, Store.append, die)
collection.collect_launches(sources)
"""
MOMENTS = ("while-reading", "between-read-and-append", "between-data-and-commit", "after-the-commit")


def start_collector(data_dir: Path, moment: str, sources: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", KILLED_COLLECTOR, moment, *sources],
        cwd=ROOT,
        env=os.environ | {"WARPGAUGE_DATA_DIR": str(data_dir)},
    )


def content(data_dir: Path) -> pl.DataFrame:
    """All rows but for when they came."""
    return Store(str(data_dir)).read("launches").drop("collected_at").collect().sort("launch_id")


def test_killed_collector_run_again_leaves_the_table_of_an_undisturbed_run(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [str(launches_file(project, seed)) for seed in (1, 2, 3)]
    collect_launches(sources)
    undisturbed = content(project / "data")
    assert undisturbed.height == 60
    # All at once: most of each second is the start of Python.
    started = {moment: start_collector(project / moment, moment, sources) for moment in MOMENTS}
    for moment, process in started.items():
        assert process.wait(60) == -signal.SIGKILL, moment
        assert content(project / moment).height == (40 if moment == "after-the-commit" else 20)
        monkeypatch.setenv("WARPGAUGE_DATA_DIR", str(project / moment))
        again = collect_launches(sources)
        assert again["added"] == (20 if moment == "after-the-commit" else 40)
        assert content(project / moment).equals(undisturbed)


def test_two_collectors_at_once_leave_each_row_once(project: Path) -> None:
    sources = [str(launches_file(project, seed)) for seed in range(5)]
    both = [
        start_collector(project / "data", "never", part)
        for part in (sources[:4], list(reversed(sources[1:])))
    ]
    assert [process.wait(60) for process in both] == [0, 0]
    frame = rows("launches")
    assert frame.height == frame["launch_id"].n_unique() == 100
    assert collect_launches(sources)["added"] == 0


# --- a store that cannot be written --------------------------------------------------------------------


def test_store_that_cannot_be_written_is_no_fault_of_the_source(project: Path) -> None:
    (project / "data").write_text("a file where the folder should be")
    with pytest.raises(ServiceUnavailableError, match=r"launches at .* cannot be read or written") as caught:
        collect_launches([str(launches_file(project))])
    assert caught.value.exit_code == 3
    with pytest.raises(ServiceUnavailableError, match=r"cuda-headers:12\.4\.127: this machine failed"):
        collect_documents(["cuda-headers:12.4.127"])


def test_full_disk_under_a_download_is_no_fault_of_the_source(
    project: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(project / "absent"))
    SERVED["/trials.csv"] = launches_file(project).read_bytes()
    with pytest.raises(ServiceUnavailableError, match=r"trials\.csv: this machine failed"):
        collect_launches([f"{server}/trials.csv"])


# --- documents -----------------------------------------------------------------------------------------


def write_lines(path: Path, *records: dict[str, Any] | str) -> str:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("\n".join(lines) + "\n")
    return f"jsonl:{path}"


def report(number: int, **more: Any) -> dict[str, Any]:
    return {"source": "made/up", "source_id": number, "title": f"title {number}", "body": "words", **more}


def test_reports_and_their_labels_are_collected_once(project: Path, server: str) -> None:
    reports = write_reports(project, 10)
    SERVED["/reports.jsonl"] = gzip.compress(reports.read_bytes())
    first = collect_documents([f"jsonl:{reports}"])
    assert (first["added"], first["labels_added"], exit_code(first)) == (10, 10, 0)
    again = collect_documents([f"jsonl:{project}/*.jsonl", f"jsonl:{server}/reports.jsonl"])
    assert (again["offered"], again["added"], again["labels_added"]) == (20, 0, 0)
    assert rows("labels").height == 10
    assert rows("labels")["labelled_at"].null_count() == 0


def test_label_without_a_time_is_one_label_until_it_changes(project: Path) -> None:
    path = project / "labels.jsonl"
    first = write_lines(
        path, report(1, label="defect", kinds=["typo"], annotator="ann"), report(2, label="ok")
    )
    assert collect_documents([first])["labels_added"] == 2
    assert collect_documents([first])["labels_added"] == 0
    changed = write_lines(path, report(1, label="ok", annotator="ann"), report(2, label="ok"))
    assert collect_documents([changed])["labels_added"] == 1
    assert collect_documents([changed])["labels_added"] == 0
    labels = rows("labels").sort("labelled_at")
    assert labels.height == 3
    assert labels["is_defect"].to_list()[-1] is False
    dated = write_lines(
        path,
        report(2, label="ok", labelled_at="2026-01-01T00:00:00Z"),
        report(2, label="defect", annotator="bob"),
    )
    assert collect_documents([dated])["labels_added"] == 2


def test_map_reads_other_names_and_a_wrong_one_is_refused(project: Path) -> None:
    record = {
        "repo": "a/b",
        "commit": "c1",
        "subject": "one",
        "text": "two",
        "label": "doc_only",
        "date": "2026-01-02",
    }
    source = write_lines(project / "pulls.jsonl", record)
    with pytest.raises(NoDataError, match="--map source=repo,source_id=commit,title=subject,body=text"):
        collect_documents([source])
    assert Store().version("documents") is None
    with pytest.raises(SettingsError, match="unknown field 'colour'"):
        collect_documents([source], "colour=text")
    result = collect_documents(
        [source], "source=repo,source_id=commit,title=subject,body=text,created_at=date"
    )
    assert (result["added"], result["labels_added"]) == (1, 1)
    assert rows("labels")["label_source"].to_list() == ["history"]


def test_one_bad_line_refuses_the_file_and_leaves_nothing_of_it(project: Path) -> None:
    bad = write_lines(project / "bad.jsonl", report(1, label="defect"), '{"source": "made/up", "sour')
    good = write_lines(project / "good.jsonl", report(5))
    result = collect_documents([bad, good])
    assert (result["added"], result["labels_added"], len(result["refused"])) == (1, 0, 1)
    assert "line 2 (the last line: the file may be cut)" in result["refused"][0]
    assert rows("documents")["source_id"].to_list() == ["5"]
    kept = collect_documents([bad], keep_whole=True)
    assert (kept["added"], kept["labels_added"]) == (1, 1)
    assert len(kept["salvaged"]) == 1


def test_unknown_document_source_stops_before_anything_is_collected(project: Path) -> None:
    good = write_lines(project / "good.jsonl", report(5))
    for source in ("wiki:page", "good.jsonl", "", "https://host/x"):
        with pytest.raises(SettingsError, match="known forms: cuda-headers"):
            collect_documents([good, source])
    assert Store().version("documents") is None


def test_markdown_page_is_collected(project: Path) -> None:
    page = project / "page.md"
    page.write_text("# Streams\n\nA stream orders work.\n")
    result = collect_documents([f"markdown:{page}"])
    assert result["added"] == 1
    assert rows("documents")["family"].to_list() == ["page"]


TOY = (ROOT / "tests" / "data" / "documents_toy_v1.h").read_text()


@pytest.fixture
def fetched(project: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Versions that pip was asked for; it hands out wheels of a hand-written header, a little other in each."""
    asked: list[str] = []

    def download(package: str, version: str, folder: Path) -> None:
        asked.append(f"{package}=={version}")
        text = TOY.replace(
            "Lamp to begin with", f"Lamp number {'one' if version.startswith('12') else 'two'}"
        )
        stamp = (2020 + len(asked), 1, 1, 0, 0, 0)
        with zipfile.ZipFile(folder / f"{package}-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(zipfile.ZipInfo("nvidia/cuda_runtime/include/toy.h", stamp), text)

    monkeypatch.setattr(collection, "_pip_download", download)
    return asked


def test_header_versions_are_fetched_once_and_label_each_other(fetched: list[str]) -> None:
    result = collect_documents(["cuda-headers:12.4.127, 13.0.1"])
    assert fetched == ["nvidia-cuda-runtime-cu12==12.4.127", "nvidia-cuda-runtime==13.0.1"]
    assert [report["source"] for report in result["sources"]] == [
        "cuda-headers:12.4.127",
        "cuda-headers:13.0.1",
    ]
    assert result["added"] > 4
    labels = rows("labels")
    assert result["labels_added"] == labels.height > 0
    assert labels["is_defect"].sum() == 1
    again = collect_documents(["cuda-headers:13.0.1,12.4.127"])
    assert (again["added"], again["labels_added"], len(fetched)) == (0, 0, 2)
    assert [path.name for path in sorted(cache_dir("wheels").iterdir())] == ["12.4.127", "13.0.1"]


def test_version_that_pip_cannot_fetch_leaves_no_cache_and_costs_no_other(
    fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    download = collection._pip_download

    def fail_on_nine(package: str, version: str, folder: Path) -> None:
        if version.endswith(".9"):
            (folder / "half.whl").write_bytes(b"PK")
            raise SourceUnavailableError("pip could not fetch it")
        download(package, version, folder)

    monkeypatch.setattr(collection, "_pip_download", fail_on_nine)
    result = collect_documents(["cuda-headers:12.4.9,13.0.1"])
    assert result["refused"] == ["cuda-headers:12.4.9: pip could not fetch it"]
    assert [path.name for path in cache_dir("wheels").iterdir()] == ["13.0.1"]


@pytest.mark.parametrize(
    "version", ["", "12", "latest", "12.4;rm", "../../12.4", "12.²", "--pre", "1" * 5000 + ".0"]
)
def test_version_that_is_none_never_reaches_pip(fetched: list[str], version: str) -> None:
    with pytest.raises(SettingsError, match=r"a version looks like 12\.4\.127"):
        fetch_header_wheels(version)
    with pytest.raises(NoDataError, match=r"a version looks like 12\.4\.127"):
        collect_documents([f"cuda-headers:{version}"])
    assert fetched == []


def test_pip_that_fails_is_quoted(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = SimpleNamespace(returncode=1, stderr="WARNING: x\nERROR: No matching distribution found\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(
        SourceUnavailableError, match=r"nvidia-cuda-runtime-cu12==12\.4\.9: ERROR: No matching"
    ):
        fetch_header_wheels("12.4.9")


def test_damaged_wheel_in_the_cache_is_refused_once_and_fetched_anew(fetched: list[str]) -> None:
    wheel = fetch_header_wheels("12.4.127")[0]
    wheel.write_bytes(wheel.read_bytes()[:-30])
    with pytest.raises(NoDataError, match="cannot be read as a wheel"):
        collect_documents(["cuda-headers:12.4.127"])
    assert collect_documents(["cuda-headers:12.4.127"])["added"] > 0
    assert len(fetched) == 2


def test_wheel_that_another_collector_fetched_meanwhile_serves(
    fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    download = collection._pip_download

    def be_overtaken(package: str, version: str, folder: Path) -> None:
        download(package, version, folder)
        other = cache_dir("wheels") / version
        other.mkdir()
        download(package, version, other)

    monkeypatch.setattr(collection, "_pip_download", be_overtaken)
    assert len(fetch_header_wheels("12.4.127")) == 1
    assert [path.name for path in cache_dir("wheels").iterdir()] == ["12.4.127"]


def test_report_that_calls_itself_a_header_entry_stops_no_later_collection(
    fetched: list[str], tmp_path: Path
) -> None:
    poison = report(1) | {"source": "cuda-headers", "product_version": "not a version"}
    assert (
        collect_documents([write_lines(tmp_path / "r.jsonl", poison), "cuda-headers:12.4.127"])["added"] > 1
    )
    assert collect_documents(["cuda-headers:13.0.1"])["labels_added"] > 0


# --- telemetry -----------------------------------------------------------------------------------------

LOGS = ROOT / "tests" / "data" / "telemetry"


def test_machine_without_a_driver_is_an_answer(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(is_present=False))
    result = collect_telemetry(["nvml"])
    assert "no NVIDIA driver" in result["unavailable"]
    assert (result["added"], result["refused"], exit_code(result)) == (0, [], 0)


def test_gpus_of_this_machine_are_sampled(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(is_present=True))
    result = collect_telemetry(["nvml"])
    assert (result["unavailable"], result["added"]) == (None, 1)
    row = rows("gpu_samples").row(0, named=True)
    assert (row["gpu_uuid"], row["utilization_percent"], row["source_kind"]) == ("GPU-a", 45.0, "nvml")
    assert row["power_w"] is None


def test_gpu_that_no_longer_answers_is_named_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from warpgauge.tables import GPU_SAMPLES

    monkeypatch.setattr("socket.gethostname", lambda: "here")
    elsewhere = {
        "gpu_uuid": ["GPU-elsewhere", "GPU-of-a-log"],
        "source_kind": ["nvml", "nvidia-smi"],
        "source_name": ["there", "here"],
        "sampled_at": [datetime(2026, 1, 1, tzinfo=UTC)] * 2,
        "collected_at": [datetime(2026, 1, 1, tzinfo=UTC)] * 2,
    }
    Store().append("gpu_samples", GPU_SAMPLES.conform(pl.DataFrame(elsewhere)))
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(is_present=True, gpus=("GPU-a", "GPU-b")))
    assert collect_telemetry(["nvml"])["salvaged"] == []
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(is_present=True))
    lost = collect_telemetry(["nvml"])
    assert lost["salvaged"] == ["nvml: GPU-b: lost (no longer enumerated); no reading of it from here on"]
    assert lost["sources"][0]["counts"]["lost gpus"] == 1
    assert (lost["added"], exit_code(lost)) == (1, 3)
    again = collect_telemetry(["nvml"])
    assert (again["salvaged"], again["sources"][0]["counts"]["lost gpus"], exit_code(again)) == ([], 0, 0)


def fake_nvml(*, is_present: bool, gpus: tuple[str, ...] = ("GPU-a",)) -> Any:
    """A driver with cards that know only their name and utilization, or no driver."""

    class NVMLError(Exception):
        pass

    class NVMLError_LibraryNotFound(NVMLError):
        pass

    def start() -> None:
        if not is_present:
            raise NVMLError_LibraryNotFound

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=start,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(gpus),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=gpus.__getitem__,
        nvmlDeviceGetName=lambda _: "Tesla T4",
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=45, memory=12),
    )


def test_logs_of_gpus_are_collected_once_beside_a_bad_one(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "cut.csv").write_text("timestamp, uuid, utilization.gpu [%]\n2026/01/02 03:04:05.678, GPU-1")
    sources = [str(LOGS / "*.csv"), str(project / "cut.csv")]
    result = collect_telemetry(sources)
    assert result["added"] == result["offered"] == rows("gpu_samples").height > 3
    assert len(result["refused"]) == 1
    assert "cut.csv: row 2" in result["refused"][0]
    assert collect_telemetry(sources)["added"] == 0
    with pytest.raises(NoDataError, match=r"cut\.csv"):
        collect_telemetry([str(project / "cut.csv")])


def test_log_without_a_zone_is_read_in_the_zone_of_the_setting(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPGAUGE_TELEMETRY_TIMEZONE", "Europe/Berlin")
    collect_telemetry([str(LOGS / "nvidia_smi.csv")])
    assert rows("gpu_samples")["sampled_at"].min() == datetime(2026, 1, 2, 2, 4, 5, 678_000, UTC)
    monkeypatch.setenv("WARPGAUGE_TELEMETRY_TIMEZONE", "Atlantis")
    with pytest.raises(NoDataError, match="Atlantis"):
        collect_telemetry([str(LOGS / "nvidia_smi.csv")])
