"""What of a text may be seen by whoever gets a page or a picture: names and reasons come from outside.

A report is sent on by e-mail and opened in a browser. So a text loses what a machine would take for more than text
(control signs, signs that turn the direction of reading, markup), secrets, and where things lie on this machine.
"""

from __future__ import annotations

import html
import re

from warpgauge.documents.redaction import RedactionRules, redact

# A reason is a sentence or two; a subject, a GPU's UUID or a table's name.
LONGEST_REASON = 600
LONGEST_NAME = 120
_RULES = RedactionRules()
_STEP = r"[^\s/\\:;,'\"<>()\[\]|]{1,255}"
# Two steps at least: `/metrics` says nothing about the machine, and neither does the fraction in `3 of 4/5`.
_PATH = re.compile(rf"(?:\b(?:sqlite|file):/*|(?<![\w:/.~-]))(?:~?/)(?:{_STEP}/){{1,64}}({_STEP})?")
_WINDOWS_PATH = re.compile(rf"(?<!\w)[A-Za-z]:\\(?:{_STEP}\\){{0,64}}({_STEP})?")


def public(text: object, longest: int = LONGEST_REASON) -> str:
    """The text on one line, without unprintable signs, secrets and absolute paths, cut to a length.

    >>> public("champion: /home/ann/mlruns/7/model.txt is cut")
    'champion: …/model.txt is cut'
    """
    # More than is shown is looked at, so that no secret is cut into something that is not recognised as one.
    given = str(text)[: 4 * longest]
    line = "".join(sign if sign.isprintable() else " " if sign.isspace() else "\ufffd" for sign in given)
    shown, _ = redact(" ".join(line.split()), _RULES)
    for path in (_PATH, _WINDOWS_PATH):
        shown = path.sub(lambda match: f"…/{match.group(1) or ''}", shown)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def escaped(text: object, longest: int = LONGEST_REASON) -> str:
    """`public`, and nothing in it is markup: for the text and the quoted attributes of HTML and SVG."""
    return html.escape(public(text, longest))


def number(value: float | None) -> str:
    """A number to four significant digits; a dash where there is none.

    >>> number(1234567.0), number(0.123456), number(-0.0), number(None)
    ('1,234,567', '0.1235', '0', '–')
    """
    if value is None:
        return "–"
    if abs(value) >= 1e15:
        return f"{value:.3e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value + 0.0:.4g}"
