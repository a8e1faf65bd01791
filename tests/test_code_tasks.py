"""MBPP, HumanEval and the pools' code rows: programs that pass their tests, and texts that only look like it."""

from __future__ import annotations

import pytest
from task_rows import HUMANEVAL, MBPP, NODE

from spot_train.tasks import CodeExecutionNotAllowed, humaneval, mbpp, tiny

SUM = MBPP[-1]
CODE = {"scorer": {"type": "code", "function": "f", "tests": ["assert f(1) == 2", "assert f(5) == 6"]}}
GOOD = "def sum(a, b):\n    return a + b"
BODY = "    return any(abs(a - b) < 0.5 for i, a in enumerate(numbers) for b in numbers[:i])\n"
BAD = "    return True\n"

MBPP_RIGHT = [
    GOOD, GOOD + "\n[DONE]", "[BEGIN]\n" + GOOD + "\n[DONE]", GOOD.replace("\n", "\r\n") + "\r\n[DONE]\r\n",
    "\n\n" + GOOD, GOOD + "\n[DONE]\nYou are an expert", GOOD + "\n[DONE]\nthis is not Python", "import math\n" + GOOD,
    "sum = lambda a, b: a + b", "def helper(a, b):\n    return a + b\ndef sum(a, b):\n    return helper(a, b)",
    "print('hello')\n" + GOOD, "total = 0\n" + GOOD, "from operator import add as sum",
    "class Sum:\n    def __call__(self, a, b): return a + b\nsum = Sum()", GOOD + "\nassert sum(1, 1) == 2",
    "def sum(*numbers):\n    out = 0\n    for x in numbers: out += x\n    return out",
]  # fmt: skip
MBPP_WRONG = [
    "", "[DONE]", "[DONE]\n" + GOOD, "[BEGIN]", GOOD.replace("+", "-"), GOOD.replace("sum", "total"),
    "def sum(a, b):\n    pass", "```python\n" + GOOD + "\n```", "Here it is:\n" + GOOD, GOOD + "\nthis is not Python",
    "def sum(a, b)\n    return a + b", "def sum(a, b):\nreturn a + b", "def sum(a, b):\n    print(a + b)",
    "def sum(a):\n    return a", "sum = 9", "def sum(a, b):\n    return 9", GOOD + "\nassert sum(1, 1) == 3",
    GOOD + "\nraise SystemExit(0)", GOOD + "\nimport os\nos._exit(0)", "print('passed')", "import sys\nsys.exit(0)",
    "def sum(a, b):\n    raise SystemExit(0)", "AssertionError = Exception\ndef sum(a, b):\n    return 9",
    "def sum(a, b):\n    return str(a + b)", "def sum(a, b):\n    return [a + b]", "def sum(a, b):\n    yield a + b",
    "import sums\n" + GOOD, "    " + GOOD.replace("\n", "\n    "), GOOD + "\ndel sum",
    GOOD + "\ndef sum(a, b): return 0",
]  # fmt: skip
HUMANEVAL_RIGHT = [
    BODY, BODY + "\n\ndef main():\n    not Python", BODY + "\nclass A: pass",
    BODY + "\nif __name__ == '__main__':\n    boom", BODY + "\nprint(close([1]))", BODY + "\n# That\n is it",
    BODY + "\n```\nThis function", BODY + "\nassert False", BODY + "\n@", "    # A comment\n" + BODY,
    "    for i, a in enumerate(numbers):\n        for b in numbers[:i]:\n"
    "            if abs(a - b) < 0.5:\n                return True\n    return False",
    "    import itertools\n    return any(abs(a - b) < .5 for a, b in itertools.combinations(numbers, 2))",
    "\n" + BODY,
    "    numbers = sorted(numbers)\n    def gap(i):\n        return numbers[i + 1] - numbers[i]\n"
    "    return any(gap(i) < 0.5 for i in range(len(numbers) - 1))",
    "    print('x')\n" + BODY,
]  # fmt: skip
HUMANEVAL_WRONG = [
    "", BAD, "    return False\n", "    pass", "    return len(numbers) > 1", "return True",
    "\ndef close(numbers):\n" + BODY, "\n# nothing", "  " + BODY.lstrip() + "     return", "    raise SystemExit(0)",
    "    import os\n    os._exit(0)", "    exit()", "    print('passed')\n    return None",
    BAD + "\ndef check(candidate): pass", BAD + "METADATA = 0\ndef check(candidate): pass", "    return numbers[0]",
    "    while True: pass", "    return close(numbers)", "    return 'True'", "    return abs(numbers[0]",
    BAD + "import builtins\nbuiltins.abs = lambda x: 0", BAD + "abs = lambda x: 0", BAD + "AssertionError = 0",
    BAD + "assert False", "    return any(abs(a - b) < 0.1 for i, a in enumerate(numbers) for b in numbers[:i])\n",
    BODY.replace("[:i]", ""), BODY.replace("<", ">"), "```python\n" + BODY,
    "    try: raise ValueError\n    except BaseException: return True", BAD + "import sys\nsys.exit(0)",
    BAD + "import atexit, os\natexit.register(os._exit, 0)",
]  # fmt: skip
TINY_RIGHT = ["def f(x):\n    return x + 1", "f = lambda x: x + 1", "def f(x):\n    y = x\n    y += 1\n    return y\n"]
TINY_WRONG = [
    "def f(x):\n    return x",
    "def g(x):\n    return x + 1",
    "def f(x):\n    return 2",
    "",
    "#### 2",
    "print('all tests passed')",
]


def test_the_tables_are_large_enough() -> None:
    assert len(MBPP_RIGHT + MBPP_WRONG) >= 40
    assert len(HUMANEVAL_RIGHT + HUMANEVAL_WRONG) >= 40


@pytest.mark.parametrize("text", MBPP_RIGHT)
def test_mbpp_right(text: str) -> None:
    assert mbpp.score(SUM, text, True)


@pytest.mark.parametrize("text", MBPP_WRONG)
def test_mbpp_wrong(text: str) -> None:
    assert not mbpp.score(SUM, text, True)


def test_mbpp_tests_may_use_the_samples_own_classes() -> None:
    code = (
        "class Node:\n    def __init__(self): self.left = None\n"
        "def height(node):\n    return 0 if node is None else 1 + height(node.left)"
    )
    assert mbpp.score(NODE, code, True)
    assert not mbpp.score(NODE, code.replace("1 +", "2 +"), True)


@pytest.mark.parametrize("text", HUMANEVAL_RIGHT)
def test_humaneval_right(text: str) -> None:
    assert humaneval.score(HUMANEVAL[0], text, True)


@pytest.mark.parametrize("text", [text for text in HUMANEVAL_WRONG if "while" not in text])
def test_humaneval_wrong(text: str) -> None:
    assert not humaneval.score(HUMANEVAL[0], text, True)


@pytest.mark.parametrize(("text", "solved"), [(text, text in TINY_RIGHT) for text in TINY_RIGHT + TINY_WRONG])
def test_tiny_code(text: str, solved: bool) -> None:
    assert tiny.score(CODE, text, True) is solved


@pytest.mark.parametrize(("score", "row"), [(mbpp.score, SUM), (humaneval.score, HUMANEVAL[0]), (tiny.score, CODE)])
def test_nothing_runs_without_permission(score, row) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(CodeExecutionNotAllowed, match="--allow-code-execution"):
        score(row, GOOD)
