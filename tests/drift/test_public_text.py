"""What may leave the machine: one line, no control signs, no secrets, no absolute paths."""

import html

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpgauge.drift.public_text import escaped, number, public


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("p95 97.0 % of 3/4 readings at 2 GB/s", "p95 97.0 % of 3/4 readings at 2 GB/s"),
        ("/home/ann/data/launches/part-1.parquet is cut", "…/part-1.parquet is cut"),
        ("champion: /srv/mlruns/artifacts/7/model.txt: cut", "champion: …/model.txt: cut"),
        ("MLflow store sqlite:////srv/w/mlflow.db did not answer", "MLflow store …/mlflow.db did not answer"),
        ("see file:///home/ann/x.html now", "see …/x.html now"),
        ("(~/warpgauge/data/x)", "(…/x)"),
        (r"at C:\Users\ann\x.txt", "at …/x.txt"),
        ("https://hub.example/docs/page.html", "https://hub.example/docs/page.html"),
        ("asks /metrics", "asks /metrics"),
        ("http://ann:hunter22@hub.example/x", "http://[redacted login]@hub.example/x"),
        ("token ghp_abcdefghijklmnopqrstuvwxyz0123456789", "token [redacted token]"),
        ("mail ann@example.org", "mail [redacted e-mail]"),
        ("a\x1b[31mred\x00\n\tb", "a\ufffd[31mred\ufffd b"),
        ("GPU-\u202egnp.exe", "GPU-\ufffdgnp.exe"),
        ("\ud800", "\ufffd"),
        ("", ""),
    ],
)
def test_a_text_loses_what_a_machine_or_a_stranger_would_read_in_it(given: str, shown: str) -> None:
    assert public(given) == shown


def test_a_long_text_is_cut_and_says_so() -> None:
    assert public("a" * 50, 10) == "aaaaaaaaa…"
    assert public("a" * 10, 10) == "a" * 10


def test_a_secret_beyond_the_cut_is_not_cut_into_something_else() -> None:
    text = "x" * 30 + " ghp_" + "a" * 36
    assert "ghp_" not in public(text, 40)


@given(st.text(max_size=300))
def test_no_text_is_markup(text: str) -> None:
    shown = escaped(text)
    assert not set(shown) & set("<>\"'")
    assert html.unescape(shown) == public(text)
    assert len(public(text)) <= 600


def test_numbers_have_four_digits_and_a_lack_of_one_is_no_zero() -> None:
    assert [number(value) for value in (0.0, 92, 0.000123456, 12345.6, -3.14159, 1e20, None)] == [
        "0",
        "92",
        "0.0001235",
        "12,346",
        "-3.142",
        "1.000e+20",
        "–",
    ]
