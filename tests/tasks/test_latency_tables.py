"""Any latency table from its files to a champion that is watched: collected, trained, judged, drifted, asked."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tasks import collection, monitoring, registration, training
from tasks.bundles import bundle_facts
from tasks.collection import collect_known_tables, collect_table
from tasks.prediction import predict_rows
from tasks.presentation import as_json, exit_code, render
from tasks.registration import list_versions, rollback, table_models, version_facts
from tasks.storage import Store, cache_dir
from tasks.training import plan_training
from tests.fakes import write_kernel_spec, write_kernels
from warpgauge.errors import (
    ModelNotFoundError,
    NoDataError,
    SchemaError,
    SettingsError,
    SourceFileError,
    WarpgaugeError,
)
from warpgauge.latency.table_spec import read_table_spec
from warpgauge.tables import QUARANTINE, Table

ROOT = Path(__file__).parents[2]
MODEL = "latency-tiny"


def table_of(spec: Path) -> Table:
    return read_table_spec(spec).scheme.table


def rows_of(spec: Path) -> pl.DataFrame:
    return Store().read(table_of(spec)).collect()


def train(spec: Path, **options: Any) -> dict[str, Any]:
    """The gate's verdict on a training, with what the version says of itself; or the plan that skipped it."""
    plan = plan_training(MODEL, table=str(spec), **options)
    if plan["skip"]:
        return plan
    bundle = training.train_latency(plan, "test")
    verdict = registration.apply_gate(bundle, registration.register(bundle))
    return verdict | {"facts": version_facts(MODEL, verdict["version"])}


def monitor() -> dict[str, Any]:
    return monitoring.decide(monitoring.measure())


def decision(decided: dict[str, Any], signal_name: str, subject: str) -> dict[str, Any]:
    """The one decision on a signal of a subject."""
    (found,) = (
        row for row in decided["decisions"] if (row["signal"], row["subject"]) == (signal_name, subject)
    )
    return dict(found)


# --- collection ----------------------------------------------------------------------------------------


def test_files_are_collected_once_and_a_new_one_adds_its_rows(project: Path) -> None:
    spec = write_kernel_spec(project / "specs")
    write_kernels(spec.parent, 20)
    first = collect_table(str(spec))
    assert (first["table"], first["offered"], first["added"], first["refused"]) == (
        "latency_tiny",
        20,
        20,
        [],
    )
    again = collect_table(str(spec))
    assert (again["offered"], again["added"], again["version"]) == (20, 0, first["version"])
    # The same content under another name is the same rows.
    shutil.copy(next(spec.parent.glob("*.csv")), spec.parent / "kernels-copy.csv")
    write_kernels(spec.parent, 5, seed=1)
    third = collect_table(str(spec))
    assert (third["offered"], third["added"], exit_code(third)) == (45, 5, 0)
    assert "latency_tiny: 5 rows added, version 2" in render("collect", third)
    assert rows_of(spec)["row_id"].n_unique() == 25


def test_files_of_every_form_and_packed_ones_are_the_same_table(project: Path) -> None:
    spec = write_kernel_spec(project / "specs")
    csv = write_kernels(project, 12)
    spec.write_text(spec.read_text().replace('["kernels*.csv"]', '["k1*", "k2*", "sub/**/k*.jsonl"]'))
    frame = pl.read_csv(csv)
    frame[:4].write_parquet(spec.parent / "k1.parquet")
    frame[4:8].with_columns(pl.lit("unused").alias("more")).write_csv(spec.parent / "k2.csv")
    (spec.parent / "sub" / "deep").mkdir(parents=True)
    frame[8:].write_ndjson(spec.parent / "sub" / "deep" / "k3.jsonl")
    assert collect_table(str(spec))["added"] == 12
    wanted = frame.sort("latency").select("m", "latency").cast(pl.Float64)
    assert rows_of(spec).sort("latency").select("m", "latency").equals(wanted)


def test_damaged_file_is_refused_by_name_and_the_others_are_collected(project: Path) -> None:
    spec = write_kernel_spec(project / "specs")
    write_kernels(spec.parent, 20)
    damaged = {
        "kernels-cut.csv": (b"device,dtype,m,n,k,latency\nTest GPU,float16,1,2", "has 4 of 6 fields"),
        "kernels-png.csv": (b"\x89PNG\r\n\x1a\n" + bytes(64), "no Parquet file"),
        "kernels-unlabelled.csv": (b"device,dtype,m,n,k\nTest GPU,float16,1,2,3\n", "latency"),
    }
    for name, (content, _) in damaged.items():
        (spec.parent / name).write_bytes(content)
    result = collect_table(str(spec))
    assert (result["added"], exit_code(result)) == (20, 3)
    assert len(result["refused"]) == len(damaged)
    for name, (_, reason) in damaged.items():
        (said,) = (text for text in result["refused"] if name in text)
        assert re.search(reason, said)
    for name in damaged:
        if name != "kernels-unlabelled.csv":
            os.rename(spec.parent / name, spec.parent / f"only-{name}")
    spec.write_text(spec.read_text().replace("kernels*.csv", "only-*.csv"))
    with pytest.raises(NoDataError, match=r"only-kernels-cut\.csv.*only-kernels-png\.csv"):
        collect_table(str(spec))


def test_misspelt_column_stops_before_anything_is_written(project: Path) -> None:
    spec = write_kernel_spec(project / "specs")
    write_kernels(spec.parent, 20)
    good = spec.read_text()
    spec.write_text(good.replace('"latency"', '"latencies"'))
    with pytest.raises(SchemaError, match=r"no file has the column latencies \(latency\?\)") as caught:
        collect_table(str(spec))
    assert caught.value.exit_code == 2
    assert not (project / "data" / "latency_tiny").exists()
    spec.write_text(good.replace('files = ["kernels*.csv"]', 'files = ["kernel_*.csv"]'))
    with pytest.raises(SourceFileError, match=r"no file .*matches kernel_"):
        collect_table(str(spec))
    with pytest.raises(SourceFileError, match=r"absent\.toml: no such file"):
        collect_table(str(project / "absent.toml"))


def test_value_that_is_none_of_its_column_is_missing_and_said(project: Path) -> None:
    spec = write_kernel_spec(project / "specs")
    path = write_kernels(spec.parent, 20)
    lines = path.read_text().splitlines()
    lines[3] = re.sub(r"^([^,]*,[^,]*),\d+", r"\1,many", lines[3])
    path.write_text("\n".join(lines) + "\n")
    result = collect_table(str(spec))
    assert (result["added"], exit_code(result)) == (20, 3)
    assert "1 values are none of their column" in result["salvaged"][0]
    assert "row 3, column m: 'many'" in result["salvaged"][0]
    assert rows_of(spec)["m"].null_count() == 1


def test_spec_is_found_from_any_folder_and_under_any_name(
    registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = registry / "Größen und mehr"
    spec = write_kernel_spec(strange)
    files = registry / "where files lie"
    files.mkdir()
    write_kernels(files, 20)
    monkeypatch.chdir(strange)
    assert collect_table("tiny.toml", "../where files lie")["added"] == 20
    monkeypatch.chdir(registry)
    assert collect_table(str(spec.relative_to(registry)), str(files))["added"] == 0
    plan = plan_training(MODEL, table="Größen und mehr/tiny.toml", folder="where files lie")
    assert plan["table_spec"] == {"path": str(spec), "folder": str(files)}


KILLED_COLLECTOR = """
import os, signal, sys
from tasks import collection
from tasks.storage import Store

moment, spec = sys.argv[1:]
calls = 0
whole = Store.append

def append(self, *arguments):
    global calls
    calls += 1
    if calls == 2 and moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    appended = whole(self, *arguments)
    if calls == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return appended

Store.append = append
collection.collect_table(spec)
"""


def test_killed_collection_run_again_leaves_the_table_of_an_undisturbed_one(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_kernel_spec(project / "specs")
    for seed in range(3):
        write_kernels(spec.parent, 20, seed=seed)
    collect_table(str(spec))
    undisturbed = rows_of(spec).drop("collected_at").sort("row_id")
    for moment, added in (("before", 40), ("after", 20)):
        monkeypatch.setenv("WARPGAUGE_DATA_DIR", str(project / moment))
        killed = subprocess.run(
            [sys.executable, "-c", KILLED_COLLECTOR, moment, str(spec)], cwd=ROOT, check=False, timeout=60
        )
        assert killed.returncode == -signal.SIGKILL
        assert rows_of(spec).height == 60 - added
        assert collect_table(str(spec))["added"] == added
        assert rows_of(spec).drop("collected_at").sort("row_id").equals(undisturbed)


def test_column_that_collected_rows_lack_is_refused_and_not_taken_as_missing(project: Path) -> None:
    spec = write_kernel_spec(project / "specs")
    path = write_kernels(spec.parent, 20)
    pl.read_csv(path).with_columns(pl.lit(3).alias("batch")).write_csv(path)
    collect_table(str(spec))
    text = spec.read_text().replace('["m", "n", "k"]\ncat', '["m", "n", "k", "batch"]\ncat')
    spec.write_text(text)
    with pytest.raises(SchemaError, match=r"20 rows.*without batch.*name") as caught:
        collect_table(str(spec))
    assert caught.value.exit_code == 2
    shutil.rmtree(project / "data" / "latency_tiny")
    assert collect_table(str(spec))["added"] == 20
    # A column that only newer files have is one that the older rows lack indeed.
    spec.write_text(text.replace('"batch"]', '"batch", "later"]'))
    pl.read_csv(path).with_columns(pl.lit(5).alias("later")).write_csv(spec.parent / "kernels-later.csv")
    assert collect_table(str(spec))["added"] == 20


def test_column_of_another_kind_than_was_collected_is_refused(project: Path) -> None:
    spec = write_kernel_spec(project / "specs")
    write_kernels(spec.parent, 20)
    collect_table(str(spec))
    text = spec.read_text()
    spec.write_text(
        text.replace('numeric = ["m", "n", "k"]', 'numeric = ["m", "n"]')
        .replace('categorical = ["dtype"]', 'categorical = ["dtype", "k"]')
        .replace("* k", "")
        .replace("+ k * n", "")
    )
    with pytest.raises(SchemaError, match=r"latency_tiny.*k is.*name"):
        collect_table(str(spec))
    spec.write_text(
        text.replace('"m", "n", "k"]\ncat', '"m", "n", "k", "dtype"]\ncat').replace('["dtype"]', "[]")
    )
    with pytest.raises(SchemaError, match=r"latency_tiny.*dtype is"):
        collect_table(str(spec))


# --- known tables --------------------------------------------------------------------------------------


def test_known_tables_are_collected_and_validated(tiny: Path, expectations: Path) -> None:
    path = write_kernels(tiny.parent, 30, seed=7)
    path.write_text(path.read_text() + "Test GPU,float16,16,16,16,-1.0\n")
    (report,) = collect_known_tables()
    assert (report["table"], report["added"]) == ("latency_tiny", 31)
    assert len(report["refused"]) == 1
    assert "1 of 631 rows (0.2 %) fail" in report["refused"][0]
    assert Store().read("quarantine").collect()["table_name"].to_list() == ["latency_tiny"]
    assert collect_known_tables()[0]["refused"] == []


def test_table_whose_spec_is_gone_is_refused_by_name_and_still_watched(tiny: Path) -> None:
    write_kernels(tiny.parent, 120, seed=3)
    collect_table(str(tiny))
    tiny.unlink()
    (report,) = collect_known_tables()
    assert report["added"] == 0
    assert report["refused"][0].startswith(f"{MODEL}: {tiny}: no such file")
    decided = monitor()
    residuals = decision(decided, "residuals", MODEL)
    assert (residuals["status"], residuals["sample_count"], residuals["action"]) == ("measured", 120, "none")
    quality = decision(decided, "data_quality", MODEL)
    assert (quality["status"], quality["action"]) == ("cannot_say", "wait")
    assert f"its spec: {tiny}: no such file" in quality["reason"]


def test_spec_that_describes_another_table_by_now_is_refused(tiny: Path) -> None:
    tiny.write_text(tiny.read_text().replace('name = "tiny"', 'name = "other"'))
    (report,) = collect_known_tables()
    assert "describes the table other, which is not the one of latency-tiny" in report["refused"][0]
    assert not (Path(Store().address) / "latency_other").exists()
    for asked in (plan_training, training.learns_from):
        with pytest.raises(SettingsError, match="not the one of latency-tiny"):
            asked(MODEL, table=str(tiny))
    assert training.model_named(str(tiny)) == "latency-other"
    with pytest.raises(SettingsError, match="name its spec by --table"):
        training.learns_from(MODEL)


def test_folder_of_the_files_is_forgotten_once_they_lie_beside_the_spec(
    tiny: Path, table_champion: Path, make: Any, tmp_path: Path
) -> None:
    for folder in (str(tmp_path / "elsewhere"), None):
        spec = {"path": str(tiny), "folder": folder}
        registration.register(make.bundle(str(table_champion / "bundle"), tmp_path, table_spec=spec))
        assert table_models() == {MODEL: {"table": str(tiny), "folder": folder or ""}}


# --- training ------------------------------------------------------------------------------------------


def test_first_version_is_champion_and_the_same_data_are_not_trained_on_again(tiny: Path) -> None:
    facts = version_facts(MODEL, "1")
    assert (facts["counts"]["rows"], facts["row_choice"]["way"], facts["since_version"]) == (600, "all", None)
    assert facts["metrics"]["mape_ratio"] < 0.03
    assert "held-out error 1." in facts["headline"]
    skipped = train(tiny)
    assert (skipped["skip"], skipped["version"]) == (True, "1")
    assert skipped["why"] == (
        "version 1 was trained on the same data (latency_tiny version 1) and settings; "
        f"`warpgauge train latency --table {tiny} --force` trains again"
    )
    spaced = shutil.move(tiny, tiny.parent / "a b.toml")
    why = plan_training(MODEL, table=str(spaced), folder=str(tiny.parent))["why"]
    assert f"`warpgauge train latency --table '{spaced}' --folder {tiny.parent} --force`" in why


def test_force_another_feature_and_other_settings_are_each_trained_on(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not plan_training(MODEL, table=str(tiny), force=True)["skip"]
    assert not plan_training(MODEL, table=str(tiny), trials=3)["skip"]
    with monkeypatch.context() as patch:
        patch.setenv("WARPGAUGE_LATENCY_TARGET", "repeat_launch_api_us")
        assert plan_training(MODEL, table=str(tiny))["skip"]
        patch.setenv("WARPGAUGE_LATENCY_LEAVES", "7")
        assert not plan_training(MODEL, table=str(tiny))["skip"]
    tiny.write_text(tiny.read_text().replace("[devices]", 'product = "m * n"\n\n[devices]'))
    verdict = train(tiny)
    assert (verdict["version"], verdict["outcome"]) == ("2", "promote")
    assert "product" in verdict["facts"]["importance"]


def test_training_reads_the_spec_as_it_was_planned(tiny: Path) -> None:
    plan = plan_training(MODEL, table=str(tiny), force=True)
    tiny.unlink()
    facts = bundle_facts(Path(training.train_latency(plan, "test")))
    assert facts["metrics"] == version_facts(MODEL, "1")["metrics"]


def test_spec_chooses_the_trees_before_the_settings(tiny: Path) -> None:
    tiny.write_text(tiny.read_text() + "\n[training]\ntrees = 7\nleaves = 5\n")
    boosting = train(tiny)["facts"]["boosting"]
    assert (boosting["trees"], boosting["leaves"], boosting["learning_rate"]) == (7, 5, 0.3)


def test_table_without_rows_says_so(registry: Path) -> None:
    spec = write_kernel_spec(registry / "specs")
    with pytest.raises(NoDataError, match=r"table latency_tiny holds no valid row.*latency-tiny"):
        plan_training(MODEL, table=str(spec))


def test_spec_with_more_device_figures_than_a_parameter_of_a_run_holds_is_registered(tiny: Path) -> None:
    figures = "".join(
        f'[devices.figures."GPU {number}"]\npeak_tflops = {100 + number}.0\n' for number in range(300)
    )
    tiny.write_text(tiny.read_text().replace("[baseline]", f"{figures}\n[baseline]"))
    assert train(tiny)["outcome"] == "promote"


# --- drift, and what is learned after it ---------------------------------------------------------------


def test_changed_law_trips_the_residuals_of_its_model_alone_and_is_learned(tiny: Path) -> None:
    write_kernels(tiny.parent, 400, seed=1, slower=1.5)
    collect_table(str(tiny))
    decided = monitor()
    row = decision(decided, "residuals", MODEL)
    assert (row["action"], row["sample_count"]) == ("retrain", 400)
    assert row["value"] > row["limit"]
    (order,) = decided["orders"]
    assert (order["model_name"], order["table"], order["folder"]) == (MODEL, str(tiny), "")
    quality = decision(decided, "data_quality", "latency_tiny")
    assert (quality["value"], quality["sample_count"]) == (0.0, 1000)

    verdict = train(tiny)
    assert (verdict["version"], verdict["outcome"]) == ("2", "promote")
    facts = verdict["facts"]
    choice = facts["row_choice"]
    assert (choice["way"], choice["old_count"], choice["new_count"]) == ("new", 600, 400)
    assert choice["errors"]["new"] < 0.06 < choice["errors"]["all"]
    assert (facts["counts"]["rows"], facts["since_version"]) == (400, 1)
    assert f"learned from {choice['reason']}" in facts["notes"]
    later = decision(monitor(), "residuals", MODEL)
    assert later["model_version"] == "2"
    assert "no labelled" in later["reason"]


def test_rows_that_a_version_left_out_never_teach_again(tiny: Path) -> None:
    write_kernels(tiny.parent, 400, seed=1, slower=1.5)
    collect_table(str(tiny))
    second = train(tiny)["facts"]
    assert (second["since_version"], second["counts"]["rows"]) == (1, 400)

    forced = train(tiny, force=True)["facts"]
    assert (forced["since_version"], forced["counts"]["rows"]) == (1, 400)
    assert forced["metrics"] == second["metrics"]

    write_kernels(tiny.parent, 200, seed=2, slower=1.5)
    collect_table(str(tiny))
    same_law = train(tiny)["facts"]
    assert (same_law["row_choice"]["way"], same_law["counts"]["rows"]) == ("all", 600)
    assert (same_law["row_choice"]["old_count"], same_law["since_version"]) == (400, 1)

    write_kernels(tiny.parent, 300, seed=3, slower=3.0)
    collect_table(str(tiny))
    again = train(tiny)["facts"]
    assert (again["row_choice"]["way"], again["row_choice"]["old_count"]) == ("new", 600)
    assert (again["since_version"], again["counts"]["rows"]) == (3, 300)
    forced = train(tiny, force=True)["facts"]
    assert (forced["since_version"], forced["counts"]["rows"]) == (3, 300)

    # After a rollback the rows of the older champion's time are old again, not gone.
    for _ in range(2):
        rollback(MODEL)
    returned = train(tiny, force=True)["facts"]["row_choice"]
    assert (returned["old_count"], returned["new_count"]) == (600, 300)


def test_corrected_model_is_the_same_one_when_it_is_trained_again(tiny: Path) -> None:
    write_kernels(tiny.parent, 150, seed=1, few_tiles=1.3)
    collect_table(str(tiny))
    second = train(tiny)["facts"]
    assert second["row_choice"]["way"] == "corrected"
    assert (second["since_version"], second["known_version"]) == (None, 1)
    forced = train(tiny, force=True)["facts"]
    assert forced["row_choice"] == second["row_choice"]
    assert forced["metrics"] == second["metrics"]


def test_quarantined_rows_never_teach(tiny: Path) -> None:
    write_kernels(tiny.parent, 150, seed=1, slower=9.0)
    collect_table(str(tiny))
    refused = rows_of(tiny).filter(pl.col("source_name").str.contains("9.0"))
    entry = pl.DataFrame(
        {
            "table_name": "latency_tiny",
            "row_sha256": table_of(tiny).key_hashes(refused),
            "row_key": "{}",
            "check_name": "range",
            "reason": "test",
            "quarantined_at": refused["collected_at"],
        }
    )
    Store().append("quarantine", QUARANTINE.conform(entry))
    facts = train(tiny)["facts"]
    assert (facts["counts"]["rows"], facts["row_choice"]["new_count"]) == (600, 600)
    quality = decision(monitor(), "data_quality", "latency_tiny")
    assert (quality["value"], quality["action"]) == (150 / 750, "alert")


# --- the gate ------------------------------------------------------------------------------------------


def test_worse_version_of_a_table_is_refused_by_its_relative_error(
    tiny: Path, table_champion: Path, make: Any, tmp_path: Path
) -> None:
    from warpgauge.latency.fitting import Boosting
    from warpgauge.latency.training import train_latency

    scheme = read_table_spec(tiny).scheme
    slow = rows_of(tiny).with_columns(pl.col("latency") * 1.3)
    wrong = train_latency(scheme, slow, Boosting(trees=20, learning_rate=0.2), threads=1).model.to_files()
    bundle = make.bundle(str(table_champion / "bundle"), tmp_path, wrong)
    verdict = registration.apply_gate(bundle, registration.register(bundle))
    assert verdict["outcome"] == "refuse"
    assert "mape_ratio" in verdict["reasons"][0]
    assert verdict["refused"]
    assert registration.alias_version(MODEL, "champion") == "1"


def test_version_that_is_too_large_says_by_how_much(
    tiny: Path, table_champion: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPGAUGE_GATE_MODEL_SIZE_LIMIT_MB", "0.02")
    bundle = str(table_champion / "bundle")
    verdict = registration.apply_gate(bundle, registration.register(bundle))
    assert verdict["outcome"] != "promote"
    assert any(re.search(r"0\.0\d+ MB.*0\.02", reason) for reason in verdict["reasons"]), verdict["reasons"]


def test_champion_of_another_unit_is_judged_by_the_labels_of_today(tiny: Path) -> None:
    tiny.write_text(tiny.read_text().replace('unit = "ms"', 'unit = "us"'))
    verdict = train(tiny)
    assert verdict["outcome"] == "promote"
    assert verdict["figures"]["champion_metric"] > 100


def test_champion_of_a_spec_with_fewer_columns_is_still_a_yardstick(tiny: Path) -> None:
    (path,) = tiny.parent.glob("*.csv")
    pl.read_csv(path).with_columns((pl.col("m") % 7).alias("batch")).write_csv(path)
    tiny.write_text(tiny.read_text().replace('"k"]\ncat', '"k", "batch"]\ncat'))
    shutil.move(Path(Store().address) / "latency_tiny", tiny.parent)
    collect_table(str(tiny))
    verdict = train(tiny)
    assert verdict["facts"]["counts"]["rows"] == 600
    assert verdict["figures"]["champion_metric"] == pytest.approx(
        verdict["figures"]["challenger_metric"], rel=0.5
    )


def test_champion_of_a_table_that_was_made_anew_with_other_kinds_blinds_itself_alone(tiny: Path) -> None:
    (path,) = tiny.parent.glob("*.csv")
    changed = pl.read_csv(path).with_columns(
        pl.when(pl.col("k") > 999).then(pl.lit("many")).otherwise(pl.lit("few")).alias("k")
    )
    changed.write_csv(path)
    text = tiny.read_text().replace('"n", "k"]\ncat', '"n"]\ncat').replace('["dtype"]', '["dtype", "k"]')
    tiny.write_text(text.replace("* n * k", "* n").replace("(m * k + k * n + m * n)", "(m * n)"))
    shutil.move(Path(Store().address) / "latency_tiny", tiny.parent)
    collect_table(str(tiny))
    decided = monitor()
    row = decision(decided, "residuals", MODEL)
    assert (row["status"], row["action"]) == ("cannot_say", "wait")
    assert "k is String, not Float64 as version 1 reads it" in row["reason"]
    assert decision(decided, "data_quality", "latency_tiny")["sample_count"] == 600
    # What the old champion cannot answer is for a person to judge.
    assert train(tiny)["outcome"] == "hold"


TRAINER = """
import sys
from tasks import registration, training
from tasks.collection import collect_table

name, spec = sys.argv[1:]
collect_table(spec)
bundle = training.train_latency(training.plan_training(name, table=spec), "test")
print(registration.apply_gate(bundle, registration.register(bundle))["outcome"])
"""


@pytest.mark.slow
def test_two_tables_may_be_trained_at_once(tiny: Path, project: Path) -> None:
    specs = {name: write_kernel_spec(project / name, name=name) for name in ("one", "two")}
    for seed, spec in enumerate(specs.values()):
        write_kernels(spec.parent, 300, seed=seed)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", TRAINER, f"latency-{name}", str(spec)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, spec in specs.items()
    ]
    assert [process.communicate(timeout=120)[0] for process in running] == ["promote\n", "promote\n"]
    assert {name: spec["table"] for name, spec in table_models().items()} == {
        "latency-one": str(specs["one"]),
        "latency-tiny": str(tiny),
        "latency-two": str(specs["two"]),
    }


# --- asking it -----------------------------------------------------------------------------------------


def rows_file(folder: Path, text: str = "") -> str:
    path = folder / "ask.csv"
    path.write_text(text or "device,dtype,m,n,k\nTest GPU,float16,2048,2048,2048\nTest GPU,int8,64,64,64\n")
    return str(path)


def test_rows_of_a_table_are_answered_by_its_model(tiny: Path, tmp_path: Path) -> None:
    known, unknown = predict_rows(rows_file(tmp_path), model_name=MODEL)["predictions"]
    assert (known["model_name"], known["model_version"], known["promoted"]) == (MODEL, "1", True)
    # 4 us and twice the roofline of 2 x 2048^3 FLOPs at 100 TFLOP/s.
    assert known["predicted_latency_us"] == pytest.approx(4 + 2 * 2 * 2048**3 / 100e6, rel=0.15)
    assert known["never_seen"] == []
    assert "dtype=int8" in unknown["never_seen"]


def test_explanation_adds_up_to_the_prediction(tiny: Path, tmp_path: Path) -> None:
    path = rows_file(tmp_path, "device,dtype,m,n,k\nTest GPU,float16,2048,2048,2048\n")
    result = predict_rows(path, model_name=MODEL, explain=True)
    (answer,) = result["predictions"]
    lines = answer["explanation"]
    assert lines[0]["feature"] == "physics baseline"
    total = sum(line["share_us"] for line in lines)
    assert total == pytest.approx(answer["predicted_latency_us"], rel=1e-6)
    assert "physics baseline" in render("predict", result)
    assert json.loads(as_json(result))["predictions"][0]["explanation"][0]["feature"] == "physics baseline"
    assert "explanation" not in predict_rows(path, model_name=MODEL)["predictions"][0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "device,dtypes,m,n,k\nTest GPU,float16,1,2,3\n",
            "column dtype is absent (dtypes is there); columns that the model reads: m, n, k, dtype, device",
        ),
        ("device,dtype,m,n\nTest GPU,float16,1,2\n", "column k is absent; columns that the model reads"),
        ("device,dtype,m,n,k\nTest GPU,float16,1,2,\n", "1 of 1 rows have no roofline"),
        (
            "device,dtype,m,n,k\nOther,float16,1,2,3\n",
            "no roofline (first: row 0, m=1.0, n=2.0, k=3.0, device=Other)",
        ),
        ("device,dtype,m,n,k\nTest GPU,float16,1,2,many\n", "row 1, column k: 'many' is not a number"),
        ("device,dtype,m,n,k\n", "no row to predict"),
    ],
)
def test_rows_that_cannot_be_answered_are_named(tiny: Path, tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(WarpgaugeError, match=re.escape(reason)) as caught:
        predict_rows(rows_file(tmp_path, text), model_name=MODEL)
    assert caught.value.exit_code == 2


def test_columns_that_the_model_does_not_read_are_left_out_as_in_training(tiny: Path, tmp_path: Path) -> None:
    plain = "device,dtype,m,n,k\nTest GPU,float16,64,128,256\n"
    more = "colour,device,dtype,m,n,k\nred,Test GPU,float16,64,128,256\n"
    answers = []
    for name, text in (("plain", plain), ("more", more)):
        (tmp_path / name).mkdir()
        answers.append(predict_rows(rows_file(tmp_path / name, text), model_name=MODEL)["predictions"])
    assert answers[0] == answers[1]


def test_model_that_is_none_of_these_rows_is_refused_by_name(tiny: Path, tmp_path: Path) -> None:
    path = rows_file(tmp_path)
    with pytest.raises(ModelNotFoundError, match="launch-latency, doc-quality, latency-tiny"):
        predict_rows(path, model_name="latency-absent")
    with pytest.raises(SettingsError, match="scores documents"):
        predict_rows(path, model_name="doc-quality")
    with pytest.raises(SettingsError, match="--gpu and --cuda complete launches"):
        predict_rows(path, gpu_name="Test GPU", model_name=MODEL)


def test_version_is_loaded_by_mlflow_and_predicts_a_pandas_frame(tiny: Path) -> None:
    import mlflow
    import pandas as pd

    model = mlflow.pyfunc.load_model(f"models:/{MODEL}@champion")
    frame = pd.DataFrame(
        {
            "dtype": ["float16", None],
            "m": [2048.0] * 2,
            "n": [2048.0] * 2,
            "k": [2048.0] * 2,
            "device": "Test GPU",
        }
    )
    answer = model.predict(frame)
    assert list(answer.columns) == [
        "predicted_latency_us",
        "lower_us",
        "upper_us",
        "never_seen",
        "is_simulated",
    ]
    assert (answer["lower_us"] < answer["predicted_latency_us"]).all()
    assert answer["never_seen"][0] == ""
    assert "dtype=missing" in answer["never_seen"][1]


def test_registry_commands_serve_models_of_tables(tiny: Path) -> None:
    names = [model["model_name"] for model in list_versions()["models"]]
    assert names == ["launch-latency", "doc-quality", MODEL]
    assert f"{MODEL}: champion 1" in render("models", list_versions())
    assert train(tiny, force=True)["version"] == "2"
    compared = registration.compare_versions(MODEL, "1", "champion")
    assert "mape_ratio" in render("models", compared)
    assert rollback(MODEL) == {"model_name": MODEL, "champion": "1", "rolled_back": "2"}
    assert registration.promote(MODEL, "2")["champion"] == "2"
    for command in (rollback, lambda name: registration.promote(name, "1")):
        with pytest.raises(
            ModelNotFoundError, match="the models are launch-latency, doc-quality, latency-tiny"
        ):
            command("latency-absent")
    with pytest.raises(ModelNotFoundError):
        registration.promote(MODEL, "' OR 1 = 1")


def test_caches_hold_nothing_that_is_unfinished(tiny: Path) -> None:
    train(tiny, force=True)
    assert not list(cache_dir("bundles").glob(".*"))
    assert collection.collect_table(str(tiny))["added"] == 0


def test_new_rows_that_come_in_portions_are_learned_from_together(tiny: Path) -> None:
    for seed in (1, 2):
        write_kernels(tiny.parent, 150, seed=seed, few_tiles=1.3)
        collect_table(str(tiny))
        facts = train(tiny)["facts"]
        choice = facts["row_choice"]
        assert (choice["old_count"], choice["new_count"]) == (600, 150 * seed)
        assert (choice["way"], facts["known_version"]) == ("corrected", 1)


def test_champion_of_another_split_is_no_yardstick(tiny: Path) -> None:
    text = tiny.read_text()
    assert text.count('shape = ["dtype", "m", "n", "k"]') == 1
    tiny.write_text(text.replace('shape = ["dtype", "m", "n", "k"]', 'shape = ["m", "n", "k"]'))
    verdict = train(tiny)
    assert verdict["outcome"] == "hold"
    said = "; ".join(verdict["reasons"])
    assert "was trained on another split (by dtype, m, n, k, now by m, n, k)" in said
