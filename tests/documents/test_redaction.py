"""Secrets go, CUDA stays."""

import pytest

from warpgauge.documents.redaction import (
    RedactionRules,
    redact,
    redact_fields,
    redact_identifier,
    rules_from_settings,
)
from warpgauge.errors import SettingsError
from warpgauge.settings import load_settings

RULES = RedactionRules()
KEY = b"a key of the tests"

# Each secret is put together here, so that no scanner takes this file for a leak.
SECRETS = [
    ("ghp_" + "a1B2" * 9, "token"),
    ("github_pat_" + "a1_" * 12, "token"),
    ("AKIA" + "IOSFODNN7EXAMPLE", "token"),
    ("xoxb-" + "1234567890-abc", "token"),
    ("hooks.slack.com/services/" + "T000/B000/abcdefgh", "token"),
    ("hf_" + "a1" * 17, "token"),
    ("nvapi-" + "a1" * 17, "token"),
    ("glpat-" + "a1" * 10, "token"),
    ("Authorization: Bearer " + "abcdef0123456789abcdef", "token"),
    ("eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0In0" + ".abc_def-123", "token"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "private_key"),
    ("-----BEGIN OPENSSH PRIVATE KEY-----\nnever closed", "private_key"),
    ("postgres://user:s3cret@host/db", "url_login"),
    ("password = 'hunter22'", "password"),
    ('"api_key": "abc123def"', "password"),
    ("DB_PASSWORD=hunter22", "password"),
    ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "password"),
    ("jane.doe+x@corp.example.com", "email"),
]

HARMLESS = [
    "__syncthreads(); v += __shfl_down_sync(0xffffffff, v, 16);",
    "commit 3a32eec2f97a3f1361f1fd5dfd44e3b307a02ed7",
    "sha256:" + "0123456789abcdef" * 4,
    "k<<<grid, block, 0, stream>>>(x); constexpr uint64_t mask = 0x7fffffffffffffff;",
    "y = A@B.mean(0) + q@k.transpose(-2, -1) + W@x.T",
    "git@github.com:acme/docs.git",
    "http://localhost:8080/path@2",
    "password=None, token = tokenizer.next(), api_key: str | None = None",
    "password=os.environ['PASSWORD'] and PASSWORD=$DB_PASSWORD and password=${PASSWORD}",
    "api_key: provided by the operator; a bearer token authentication scheme",
    "password: '<your password>'",
    "@cuda.jit\ndef f(x): pass",
    "key = cudaDevAttrMaxThreadsPerBlock; keyword=value",
    "\\param dst - Destination pointer @param src",
]


@pytest.mark.parametrize(("secret", "kind"), SECRETS)
def test_a_secret_is_taken_out_and_counted(secret: str, kind: str) -> None:
    text, counts = redact(f"before {secret} after", RULES)
    assert counts == {kind: 1}
    assert secret not in text
    assert text.startswith("before ")
    for part in ("hunter22", "s3cret", "MIIE", "abc123def", "corp.example", "abcdef0123456789abcdef"):
        assert part not in text


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text, RULES) == (text, {})


@pytest.mark.parametrize(("secret", "kind"), SECRETS)
def test_redacting_twice_changes_nothing_more(secret: str, kind: str) -> None:
    once, _ = redact(f"{secret} end", RULES)
    assert redact(once, RULES) == (once, {})


class TestCustomers:
    RULES = RedactionRules(customer_patterns=(r"CUST-\d{4}",), key=KEY)

    def test_one_customer_has_one_hash_and_two_have_two(self) -> None:
        text, counts = redact("CUST-0001 CUST-0002 CUST-0001", self.RULES)
        first, second, third = text.split()
        assert first == third != second
        assert counts == {"customer": 3}
        assert "0001" not in text

    def test_another_key_gives_another_hash(self) -> None:
        other = RedactionRules(customer_patterns=(r"CUST-\d{4}",), key=KEY + b"2")
        assert redact("CUST-0001", self.RULES)[0] != redact("CUST-0001", other)[0]

    def test_customers_without_a_key_are_refused(self) -> None:
        with pytest.raises(SettingsError, match="shorter than 16 bytes"):
            RedactionRules(customer_patterns=("x",), key=b"short")

    @pytest.mark.parametrize("pattern", ["(", "x*", ""])
    def test_a_pattern_that_cannot_serve_is_refused(self, pattern: str) -> None:
        with pytest.raises(SettingsError, match="customer pattern"):
            RedactionRules(customer_patterns=(pattern,), key=KEY)


class TestCodeNames:
    RULES = RedactionRules(code_names=("Bluebird", "Bluebird Max"))

    def test_whole_words_in_any_case_become_a_placeholder(self) -> None:
        text, counts = redact("bluebird max, BLUEBIRD and bluebirds", self.RULES)
        assert text == "[code name], [code name] and bluebirds"
        assert counts == {"code_name": 2}

    def test_an_empty_name_is_refused(self) -> None:
        with pytest.raises(SettingsError, match="code name is empty"):
            RedactionRules(code_names=(" ",))


def test_settings_become_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPGAUGE_REDACTION_CODE_NAMES", "Bluebird, Redbird")
    monkeypatch.setenv("WARPGAUGE_REDACTION_CUSTOMER_PATTERN", r"CUST-\d+")
    monkeypatch.setenv("WARPGAUGE_REDACTION_KEY", "k" * 16)
    rules = rules_from_settings(load_settings())
    assert rules == RedactionRules((r"CUST-\d+",), ("Bluebird", "Redbird"), b"k" * 16)


def test_fields_keep_their_nulls_and_share_a_count() -> None:
    fields, counts = redact_fields(["a@example.com", None, "b@example.com"], RULES)
    assert fields == ["[redacted e-mail]", None, "[redacted e-mail]"]
    assert counts == {"email": 2}


class TestIdentifiers:
    @pytest.mark.parametrize("name", ["17", "acme/docs", "3a32eec2f97a3f1361f1fd5dfd44e3b307a02ed7"])
    def test_an_ordinary_name_stays(self, name: str) -> None:
        assert redact_identifier("source_id", name, RULES) == (name, {})

    @pytest.mark.parametrize(("secret", "kind"), SECRETS)
    def test_a_name_with_a_secret_becomes_a_hash_that_is_its_own(self, secret: str, kind: str) -> None:
        first, counts = redact_identifier("source_id", secret, RULES)
        assert counts == {kind: 1}
        assert first == redact_identifier("source_id", secret, RULES)[0]
        assert first.startswith("[source_id:")
        assert first != redact_identifier("source_id", f"1{secret}", RULES)[0]
        assert redact_identifier("source_id", first, RULES) == (first, {})

    def test_a_customer_in_a_name_is_hashed_and_the_rest_of_it_stays(self) -> None:
        name, counts = redact_identifier("source_id", "ticket-CUST-0001-5", TestCustomers.RULES)
        assert name.startswith("ticket-[customer:")
        assert name.endswith("]-5")
        assert counts == {"customer": 1}


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "a@",
        "a.",
        "password=",
        "password",
        "ab_",
        "http://a:",
        "bearer ",
        "eyJaaaaaaaa.",
        'password="',
        "xoxb-",
        "- ",
    ],
)
def test_a_hostile_line_of_a_megabyte_is_read_through(unit: str) -> None:
    line = unit * (1_000_000 // len(unit))
    # Each pattern that waits for a later sign is given the sign at the very end.
    text, _ = redact(line + "@ :// PRIVATE KEY", RULES)
    assert text.endswith("PRIVATE KEY")
