"""What the documents say is there, is there."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from flows.__main__ import build_parser

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md")])


def project_files() -> list[str]:
    """Files of the checkout that are ours: tracked, or new and not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout, so there is no list of the project's files to look through")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def readme_commands() -> list[str]:
    """Commands of the README's code blocks and inline code, without the remark behind two blanks."""
    blocks = re.findall(r"```[a-z]*\n(.*?)```", README, flags=re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`(warpgauge [^`]+)`", README)
    return sorted({re.split(r"\s{2,}", line)[0] for line in lines if line.startswith("warpgauge ")})


@pytest.mark.parametrize("command", readme_commands())
def test_command_of_the_readme_is_one_that_the_parser_knows(command: str) -> None:
    options = build_parser().parse_args(shlex.split(command)[1:])
    assert callable(options.run)


# These need neither a Prefect server, nor the network, nor a model.
RUNNABLE = {"warpgauge doctor": "items", "warpgauge models list": "models"}


@pytest.mark.parametrize("command", RUNNABLE)
def test_command_of_the_readme_runs_on_a_store_of_its_own(command: str, registry: Path) -> None:
    assert command in readme_commands()
    done = subprocess.run(
        [Path(sys.executable).parent / "warpgauge", *shlex.split(command)[1:], "--json"],
        cwd=registry,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[RUNNABLE[command]]
    assert str(registry) in done.stdout or command == "warpgauge models list"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_document_holds_a_place_for_figures_that_never_came(path: Path) -> None:
    assert re.findall(r"^[A-Z][A-Z_]{5,}$", path.read_text(), flags=re.MULTILINE) == []


def test_readme_names_commands_at_all() -> None:
    assert len(readme_commands()) >= 12


def test_make_targets_that_documents_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    texts = [document.read_text() for document in DOCUMENTS]
    named = {
        target for text in texts for target in re.findall(r"(?:^|`)make ([a-z-]+)", text, flags=re.MULTILINE)
    }
    assert named >= {"run", "test", "test-slow"}
    assert named <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_a_document_names_exist(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    named = re.findall(r"`([\w./-]+\.(?:py|md|toml|yaml|yml|json|sh|lock))`", text)
    files = [f"/{name}" for name in project_files()]
    missing = [
        name
        for name in named
        if name not in GENERATED and not any(file.endswith(f"/{name}") for file in files)
    ]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_folders_that_a_document_names_exist(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    named = re.findall(r"`([\w.-]+(?:/[\w.-]+)*/)`", text)
    files = [f"/{name}" for name in project_files()]
    missing = [
        name for name in named if name not in GENERATED and not any(f"/{name}" in file for file in files)
    ]
    assert missing == []


# Files and folders that a run makes, a settings file that a user may write, and folders of public data.
GENERATED = {
    "bundle.json",
    "warpgauge.toml",
    "graph.json",
    "artifacts/",
    "data/",
    "uncommitted/",
    "perfscaling/",
    "kineto/",
}


def test_tracked_files_hold_no_text_of_the_cuda_headers() -> None:
    """The headers' licence forbids shipping their text; a sentence that opens them all gives a copy away."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode != 0:
        pytest.skip("not a git checkout, so there is no list of tracked files to look through")
    give_away = "NVIDIA makes no representation about " + "the suitability"
    notice = "NOTICE TO " + "LICENSEE"
    found = [
        name
        for name in tracked.stdout.splitlines()
        if (ROOT / name).is_file()
        and any(phrase in (ROOT / name).read_text(errors="ignore") for phrase in (give_away, notice))
    ]
    assert found == []
