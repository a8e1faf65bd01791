"""The final answer of a LaTeX solution, and one spelling for answers that are written in different ways.

Spelling only, except that plain numbers are compared by value: no algebra is done, so (a+5)(b+2) is not (b+2)(a+5), and
lists are ordered.
"""

from __future__ import annotations

import re
from fractions import Fraction

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)|\\boxed\s+(\S)")
_UNIT = (
    r"(?:\\(?:text|mbox|textrm)\{[^{}]*\}|\\mathrm\{[~ ]*[a-zA-Z]{2,}[^{}]*\}|(?<=\d)\s*(?:(?:square|cubic|sq)\s+)?"
    r"(?:units?|inch(?:es)?|feet|foot|ft|yards?|miles?|[cmk]?m|meters?|degrees?|dollars?|cents?|percent|seconds?|"
    r"minutes?|hours?|days?))(?:\^\{?\d\}?)?"
)
_ATOM = r"\\pi|\\sqrt\{[^{}]*\}|[a-zA-Z]"
_QUOTIENT_PART = rf"(?:\d+(?:\.\d+)?)?(?:{_ATOM})|\d+(?:\.\d+)?"
_SEPARATORS = re.compile(
    r"(\\\\|\\cup|\\cap|\\pm|\\in(?![a-z])|\\begin\{pmatrix\}|\\end\{pmatrix\}|\\\{|\\\}|[,&()\[\]=<>])"
)

_SPELLINGS = (
    (r"\\(?:left|right|displaystyle|limits|bigl?|bigr?|Bigl?|Bigr?)(?![a-zA-Z])", ""),
    (r"(?<!\\)\\[!,;: ]\s*|~|\\q?quad", lambda found: "" if found[0].startswith("\\!") else " "),
    (r"\\[dtc]frac", r"\\frac"),
    (r"\\begin\{(?:bmatrix|matrix)\}", r"\\begin{pmatrix}"),
    (r"\\end\{(?:bmatrix|matrix)\}", r"\\end{pmatrix}"),
    (r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|°|\\degrees?(?![a-z])", ""),
    (r"\\?%|\\?\$|(?<!\\)\\[()\[\]]", ""),
    (r"−", "-"),
    (r"π", r"\\pi"),
    (r"∞", r"\\infty"),
    (r"√\s*(\d+|\w)", r"\\sqrt{\1}"),
    (r"\{,\}", ","),
)
"""Other ways to write the same, in the order in which they are undone."""


def last_boxed(text: str) -> str | None:
    r"""What the last complete \boxed{} of `text` holds, braces inside it matched; None where there is none."""
    answer = None
    for box in _BOX.finditer(text):
        content = box[1] or _braced(text, box.end())
        answer = content if content is not None else answer
    return answer


def _braced(text: str, start: int) -> str | None:
    """What the braces that open at `start` hold; None where they never close."""
    depth, index = 0, start
    while index < len(text):
        if text[index] == "\\":
            index += 2
            continue
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if not depth:
            return text[start + 1 : index]
        index += 1
    return None


def normal_form(answer: str) -> str:
    """One spelling of an answer. Units, degree, percent and dollar signs fall away, `x=` too; numbers, also those in
    tuples, intervals and matrices, become reduced fractions; quotients written with a slash become \\frac."""
    text = answer.strip().rstrip(".")
    for pattern, replacement in _SPELLINGS:
        text = re.sub(pattern, replacement, text)
    text = _without_words(text.strip())
    if re.fullmatch(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?", text):
        text = text.replace(",", "")
    text = re.sub(r"\s+", "", text)
    text = re.sub(r"^[a-zA-Z](=|\\in(?![a-z]))(?=.)", "", text)
    text = re.sub(r"^\(([A-Z])\)$", r"\1", text)
    text = _braces(text)
    return "".join(part if _SEPARATORS.fullmatch(part) else _component(part) for part in _SEPARATORS.split(text))


def _without_words(text: str) -> str:
    """Text commands opened; units behind a value dropped."""
    if behind := re.fullmatch(rf"(?!\\(?:text|mbox))(.*[\d}})])\s*{_UNIT}", text):
        text = behind[1]
    return re.sub(r"\\(?:text|textbf|textit|textrm|mbox|mathrm|mathbf|rm)\s*\{([^{}]*)\}", r"\1", text).strip()


def _braces(text: str) -> str:
    """Braces that TeX lets one leave out, put in for \\frac and \\sqrt and taken out elsewhere."""
    text = re.sub(r"\\sqrt(\d|[a-zA-Z])", r"\\sqrt{\1}", text)
    text = re.sub(r"\\frac(\d|[a-zA-Z])(?=.)", r"\\frac{\1}", text)
    text = re.sub(r"(\\frac\{(?:[^{}]|\{[^{}]*\})*\})(\d|[a-zA-Z])", r"\1{\2}", text)
    return re.sub(r"([_^])\{(\w)\}", r"\1\2", text)


def _component(text: str) -> str:
    """The normal form of what stands between separators."""
    text = re.sub(rf"(\d)(?:\\cdot|\\times|\*)(?={_ATOM})", r"\1", text)
    if (value := _number(text)) is not None:
        return str(value)
    text = re.sub(rf"^([-+]?)({_QUOTIENT_PART})/({_QUOTIENT_PART})$", r"\1\\frac{\2}{\3}", text)
    text = re.sub(rf"^([-+]?)\\frac\{{(-?)(\d+)\}}\{{(\d+)\}}({_ATOM})$", _scaled, text)
    text = re.sub(r"^\\frac\{-([^-+{}]*(?:\{[^{}]*\})?)\}", r"-\\frac{\1}", text)
    return text.removeprefix("+")


def _scaled(found: re.Match[str]) -> str:
    """A fraction times something as a fraction of it."""
    sign, minus, numerator, denominator, atom = found.groups()
    factor = "" if numerator == "1" else numerator
    return f"{'-' if (sign == '-') != bool(minus) else ''}\\frac{{{factor}{atom}}}{{{denominator}}}"


def _number(text: str) -> Fraction | None:
    """The value of an integer, a decimal, a quotient or a mixed number."""
    if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)", text) and len(text) < 1000:
        return Fraction(text.rstrip(".") or "0")
    fraction = r"\\frac\{([-+]?\d+)\}\{([-+]?\d+)\}"
    found = re.fullmatch(rf"([-+]?)(\d*){fraction}", text) or re.fullmatch(r"([-+]?)(\d{0})(\d+)/(\d+)", text)
    if found is None or len(text) > 1000 or not int(found[4]):
        return None
    value = int(found[2] or 0) + Fraction(int(found[3]), int(found[4]))
    return -value if found[1] == "-" else value
