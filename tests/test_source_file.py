import gzip
import hashlib
import os

import pytest

from warpgauge.errors import SourceFileError
from warpgauge.source_file import decode_text, describe_content, read_head, read_source_file


def test_plain_and_gzip_of_one_content_have_one_hash(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"some content")
    (tmp_path / "b").write_bytes(gzip.compress(b"some content"))
    plain, packed = read_source_file(tmp_path / "a.csv"), read_source_file(tmp_path / "b")
    assert plain.data == packed.data == b"some content"
    assert plain.sha256 == packed.sha256 == hashlib.sha256(b"some content").hexdigest()
    assert (plain.name, packed.name) == ("a.csv", "b")


def test_gzip_members_one_after_another_are_one_content(tmp_path):
    (tmp_path / "a").write_bytes(gzip.compress(b"one ") + gzip.compress(b"two"))
    assert read_source_file(tmp_path / "a").data == b"one two"


def test_a_gzip_bomb_is_refused_before_it_is_read_whole(tmp_path):
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(b"\x00" * 50_000_000))
    with pytest.raises(SourceFileError, match=r"bomb\.gz: .*more than 1,000,000 bytes after decompression"):
        read_source_file(bomb, size_limit_bytes=1_000_000)


def test_a_plain_file_at_the_limit_is_read_and_one_byte_more_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    assert read_source_file(tmp_path / "a", size_limit_bytes=5).data == b"12345"
    with pytest.raises(SourceFileError, match="more than 4 bytes"):
        read_source_file(tmp_path / "a", size_limit_bytes=4)


def test_a_cut_gzip_names_the_byte_and_keeps_its_beginning_only_when_asked(tmp_path):
    content = bytes(os.urandom(40_000))
    packed = gzip.compress(content)
    (tmp_path / "cut.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(SourceFileError, match=rf"cut\.gz: log incomplete: .*byte {len(packed) // 2:,} of"):
        read_source_file(tmp_path / "cut.gz", what="log")
    kept = read_source_file(tmp_path / "cut.gz", keep_whole=True)
    assert content.startswith(kept.data)
    assert len(kept.data) > 10_000
    assert kept.problem is not None
    assert "incomplete" in kept.problem


@pytest.mark.parametrize("position", [3, 12, -6])
def test_a_damaged_gzip_is_refused_by_name(tmp_path, position):
    packed = bytearray(gzip.compress(bytes(range(256)) * 20))
    packed[position] ^= 0xFF
    (tmp_path / "bad.gz").write_bytes(packed)
    with pytest.raises(SourceFileError, match=r"bad\.gz"):
        read_source_file(tmp_path / "bad.gz")


def test_missing_empty_directory_and_pipe_are_refused_by_name(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "empty.gz").write_bytes(gzip.compress(b""))
    os.mkfifo(tmp_path / "pipe")
    for name, words in {
        "missing": "no such file",
        "empty": "empty, 0 bytes",
        "empty.gz": "empty, 0 bytes after decompression",
        "pipe": "pipe",
        ".": "directory",
        "nul\x00name": "cannot be opened",
    }.items():
        for read in (read_source_file, read_head):
            if name.startswith("empty") and read is read_head:
                continue
            with pytest.raises(SourceFileError, match=words):
                read(tmp_path / name)


def test_text_that_is_not_utf8_is_refused_with_its_byte_and_kept_when_asked(tmp_path):
    (tmp_path / "latin").write_bytes(b"caf\xe9,1\n")
    source = read_source_file(tmp_path / "latin")
    with pytest.raises(SourceFileError, match="byte 3 is not UTF-8"):
        decode_text(source, what="table")
    assert decode_text(source, what="table", keep_whole=True) == "caf�,1\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "an empty file"),
        (b" \n", "nothing but white space"),
        (b"\x89PNG\r\n\x1a\n", "a PNG image"),
        (b"\n<!DOCTYPE html><html>", "an HTML page"),
        (b"<?xml version='1.0'?>", "markup (XML or HTML)"),
        ("a,b".encode("utf-16"), "UTF-16 text"),
        (b"SQLite format 3\x00", "an SQLite database"),
        (b"abc\x00def", "binary data or UTF-16 text"),
        (b"\xc3\x28 and so on", "binary data"),
        (b"hello\nworld", "text that starts with 'hello'"),
    ],
)
def test_content_is_named_as_people_know_it(content, words):
    assert describe_content(content) == words
