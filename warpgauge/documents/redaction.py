"""Secrets taken out of a text before it is stored anywhere.

Tokens, keys, passwords and e-mail addresses become a placeholder; customer identifiers become a keyed hash, so that
two texts of one customer stay recognisable as such to nobody without the key; code names become a placeholder. What
CUDA text is full of is left alone: intrinsics, hexadecimal constants, commit hashes, `A@B.T`.

Each pattern has bounded repeats and a fixed start, so the time is linear in the text, whatever it holds. Redacting
a redacted text changes nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from warpgauge.errors import SettingsError
from warpgauge.settings import DocumentSettings

# Names and forms of the vendors' tokens: their own documentation of token prefixes.
_TOKENS = (
    r"gh[pousr]_[A-Za-z0-9]{30,255}",  # GitHub
    r"github_pat_[A-Za-z0-9_]{22,255}",
    r"glpat-[A-Za-z0-9_-]{20,64}",  # GitLab
    r"(?:AKIA|ASIA|AGPA|AIDA|AROA)[A-Z0-9]{16}",  # AWS access key id
    r"xox[abeprs]-[A-Za-z0-9-]{10,250}",  # Slack
    r"xapp-[A-Za-z0-9-]{10,250}",
    r"AIza[A-Za-z0-9_-]{35}",  # Google
    r"hf_[A-Za-z0-9]{30,100}",  # Hugging Face
    r"nvapi-[A-Za-z0-9_-]{20,200}",  # NVIDIA
    r"sk-[A-Za-z0-9_-]{20,250}",  # OpenAI and others
    r"pypi-[A-Za-z0-9_-]{50,500}",
    r"npm_[A-Za-z0-9]{36}",
    r"eyJ[A-Za-z0-9_-]{8,4000}\.eyJ[A-Za-z0-9_-]{4,8000}\.[A-Za-z0-9_-]{4,4000}",  # JSON web token
)
_TOKEN = re.compile(rf"(?<![A-Za-z0-9_-])(?:{'|'.join(_TOKENS)})(?![A-Za-z0-9_])")
# An unclosed key runs to the end of the text: better too much than half a key.
_PRIVATE_KEY = re.compile(
    r"-----BEGIN (?:[A-Z]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----(?s:.*?)"
    r"(?:-----END (?:[A-Z]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----|\Z)"
)
_BEARER = re.compile(
    r"(?i)\b(bearer[ \t]{1,8})(?=[A-Za-z._~+/-]{0,200}[0-9])[A-Za-z0-9._~+/-]{16,4000}={0,2}"
)
_URL_LOGIN = re.compile(
    r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]{1,20}://)[^\s/:@'\"<>\[\]]{0,100}:[^\s/@'\"<>\[\]]{1,200}@"
)
_WEBHOOK = re.compile(r"(hooks\.slack\.com/(?:services|workflows)/)[A-Za-z0-9/_-]{10,200}")
_SECRET_NAMES = (
    r"password|passwd|passphrase|pwd|secret[_-]?key|secret[_-]?access[_-]?key|client[_-]?secret|api[_-]?key"
    r"|access[_-]?token|auth[_-]?token|private[_-]?token|account[_-]?key"
)
_ASSIGNED = re.compile(
    rf"(?i)(?<![A-Za-z0-9])((?:[A-Za-z0-9]{{1,20}}[_-]){{0,3}}(?:{_SECRET_NAMES})[\"']?[ \t]{{0,4}}[=:][ \t]{{0,4}})"
    r"(?:\"([^\"\n]{4,500})\"|'([^'\n]{4,500})'|([^\s\"'`,;<>(){}\[\]$*]{6,500})(?![\w.]*\())"
)
# What follows `password=` in documentation and is none.
_NO_SECRET = re.compile(
    r"(?i)(?:none|null|true|false|optional|required|string|str|your|changeme|example|placeholder|os\.|self\.|args\."
    r"|env\.|config\.|settings\.|x{4,}|\*+|\.{3}|<|\$|\{|\[redacted)"
)
# Possessive repeats: an address followed by `(` is a method of a product (`A@B.mean()`), not cut short to fit.
_EMAIL = re.compile(
    r"(?<![A-Za-z0-9._%+-])(?!git@)[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}+[A-Za-z]{2,24}+(?![\w(-])"
)
PLACEHOLDERS = {
    "private_key": "[redacted private key]",
    "url_login": "[redacted login]@",
    "token": "[redacted token]",
    "password": "[redacted]",
    "email": "[redacted e-mail]",
    "code_name": "[code name]",
}
# Characters of the keyed hash: 64 bits tell some billions of customers apart.
HASH_LENGTH = 16


@dataclass(frozen=True)
class RedactionRules:
    """What is secret besides what everybody's secrets look like.

    Attributes:
        customer_patterns: Regular expressions of customer identifiers; each match becomes a keyed hash.
        code_names: Names of products not yet announced, matched as whole words in any letter case.
        key: Key of the hashes, at least 16 bytes where there are customer patterns. Without a key the names of
            annotators are hashed too, but whoever knows a name can find its hash.
    """

    customer_patterns: tuple[str, ...] = ()
    code_names: tuple[str, ...] = ()
    key: bytes = b""
    _customer: tuple[re.Pattern[str], ...] = field(init=False, repr=False, compare=False)
    _code_name: re.Pattern[str] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the rules once, where they are made.

        Raises:
            SettingsError: If a pattern is no regular expression or matches nothing at all, a code name is empty, or
                customer patterns come without a key.
        """
        compiled: list[re.Pattern[str]] = []
        for pattern in self.customer_patterns:
            try:
                expression = re.compile(pattern)
            except (re.error, RecursionError, OverflowError) as error:
                raise SettingsError(
                    f"customer pattern {pattern!r} is no regular expression: {error}"
                ) from error
            if expression.search(""):
                raise SettingsError(
                    f"customer pattern {pattern!r} matches the empty text; name what it needs"
                )
            compiled.append(expression)
        if compiled and len(self.key) < 16:
            raise SettingsError(
                "customer patterns are set and the key of the hashes is shorter than 16 bytes; "
                "without it the identifiers could be guessed back"
            )
        if any(not name.strip() for name in self.code_names):
            raise SettingsError("a code name is empty; it would match everywhere")
        object.__setattr__(self, "_customer", tuple(compiled))
        names = sorted((re.escape(name.strip()) for name in self.code_names), key=len, reverse=True)
        code_name = re.compile(rf"(?i)(?<!\w)(?:{'|'.join(names)})(?!\w)") if names else None
        object.__setattr__(self, "_code_name", code_name)

    def hashed(self, kind: str, name: str) -> str:
        """A name as `[kind:hash]`; the same name gives the same hash under the same key."""
        digest = hmac.new(self.key, f"{kind}:{name}".encode("utf-8", "replace"), hashlib.sha256)
        return f"[{kind}:{digest.hexdigest()[:HASH_LENGTH]}]"


def rules_from_settings(settings: DocumentSettings) -> RedactionRules:
    """The rules that the settings describe.

    Raises:
        SettingsError: As `RedactionRules`.
    """
    pattern = settings.redaction_customer_pattern
    key = settings.redaction_key
    return RedactionRules(
        customer_patterns=(pattern,) if pattern else (),
        code_names=tuple(name.strip() for name in settings.redaction_code_names.split(",") if name.strip()),
        key=key.get_secret_value().encode() if key else b"",
    )


def redact(text: str, rules: RedactionRules) -> tuple[str, dict[str, int]]:
    """The text without its secrets.

    Args:
        text: Any text.
        rules: What is secret here besides tokens, keys, passwords and e-mail addresses.

    Returns:
        The text, and how many of what was replaced: only kinds that occurred.
    """
    counts: dict[str, int] = {}

    def replace(kind: str, pattern: re.Pattern[str], new: Callable[[re.Match[str]], str]) -> None:
        nonlocal text
        replaced = 0

        def counted(match: re.Match[str]) -> str:
            nonlocal replaced
            answer = new(match)
            replaced += answer != match.group()
            return answer

        text = pattern.sub(counted, text)
        if replaced:
            counts[kind] = counts.get(kind, 0) + replaced

    # The literal that each pattern needs is looked for first: that is most of the speed.
    if "PRIVATE KEY" in text:
        replace("private_key", _PRIVATE_KEY, _placeholder("private_key"))
    if "://" in text and "@" in text:
        replace("url_login", _URL_LOGIN, lambda match: match.group(1) + PLACEHOLDERS["url_login"])
    if "hooks.slack.com/" in text:
        replace("token", _WEBHOOK, lambda match: match.group(1) + PLACEHOLDERS["token"])
    replace("token", _TOKEN, _placeholder("token"))
    lowered = text.lower()
    if "bearer" in lowered:
        replace("token", _BEARER, lambda match: match.group(1) + PLACEHOLDERS["token"])
    if any(word in lowered for word in ("pass", "pwd", "secret", "key", "token")):
        replace("password", _ASSIGNED, _without_value)
    if "@" in text:
        replace("email", _EMAIL, _placeholder("email"))
    for pattern in rules._customer:
        replace("customer", pattern, lambda match: rules.hashed("customer", match.group()))
    if rules._code_name is not None:
        replace("code_name", rules._code_name, _placeholder("code_name"))
    return text, counts


def redact_identifier(kind: str, name: str, rules: RedactionRules) -> tuple[str, dict[str, int]]:
    """A name of something without its secrets, and still another one than that of anything else.

    A customer's hash takes the customer's place. Of what becomes a placeholder in a text there is no hash, and two names
    would become one; so the whole name becomes a keyed hash, the same wherever the name occurs.

    Args:
        kind: What is named, for the hash: `source_id`.
        name: The name.
        rules: What is secret.

    Returns:
        The name, and how many of what was replaced.
    """
    text, counts = redact(name, rules)
    return (rules.hashed(kind, name) if counts.keys() - {"customer"} else text), counts


def _placeholder(kind: str) -> Callable[[re.Match[str]], str]:
    """A replacement that is the same whatever was found."""
    return lambda _: PLACEHOLDERS[kind]


def _without_value(match: re.Match[str]) -> str:
    """`name = value` with the value gone, unchanged where the value is no secret."""
    name, double, single, bare = match.groups()
    value = double or single or bare
    if _NO_SECRET.match(value) or (bare and not re.search(r"[0-9!@#%^&+/=~]", bare)):
        # A bare word without digits or signs is the name of something: `api_key: provided by the operator`.
        return match.group()
    quote = '"' if double else "'" if single else ""
    return f"{name}{quote}{PLACEHOLDERS['password']}{quote}"


def redact_fields(
    fields: Sequence[str | None], rules: RedactionRules
) -> tuple[list[str | None], Mapping[str, int]]:
    """Several texts of one document redacted, nulls kept, with the counts of all together."""
    counts: dict[str, int] = {}
    redacted: list[str | None] = []
    for value in fields:
        if value is None:
            redacted.append(None)
            continue
        text, found = redact(value, rules)
        redacted.append(text)
        for kind, count in found.items():
            counts[kind] = counts.get(kind, 0) + count
    return redacted, counts
