"""Hand-written rows in the official formats, so that loading and scoring are tested without the data sets."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

GSM8K = [
    {"question": "Ana has 3 pens and buys 4. How many now?", "answer": "3 + 4 = <<3+4=7>>7 pens.\n#### 7"},
    {
        "question": "A shop sells 600 cups a day. How many in 2 days?",
        "answer": "2 * 600 = <<2*600=1200>>1200\n#### 1,200",
    },
]
MATH500 = [
    {"problem": "What is half of $\\frac{3}{2}$?", "answer": "\\frac{3}{4}"},
    {"problem": "Solve $x^2 = 5$ for $x > 0$.", "answer": "\\sqrt{5}"},
]


def _mbpp(task_id: int, name: str, operator: str) -> dict[str, Any]:
    return {
        "task_id": task_id,
        "text": f"Write a function to find a {operator} b.",
        "code": f"def {name}(a, b):\r\n    return a {operator} b\r\n",
        "test_setup_code": "",
        "test_list": [f"assert {name}({a}, {b}) == {eval(f'{a} {operator} {b}')}" for a, b in ((6, 3), (8, 2), (5, 5))],
        "challenge_test_list": [],
    }


NODE = {
    **_mbpp(12, "height", "+"),
    "text": "Write a function to get the height of a tree of nodes.",
    "code": "class Node:\r\n    def __init__(self, left=None): self.left = left\r\ndef height(node):\r\n    return 0",
    "test_setup_code": "root = Node()\r\nroot.left = Node()",
    "test_list": ["assert height(root) == 2"],
}
MBPP = [
    *(_mbpp(number, f"shot{number}", operator) for number, operator in ((2, "+"), (3, "-"), (4, "*"))),
    _mbpp(601, "trained", "//"),
    NODE,
    _mbpp(11, "sum", "+"),
]
HUMANEVAL = [
    {
        "task_id": "HumanEval/0",
        "prompt": "from typing import List\n\n\ndef close(numbers: List[float]) -> bool:\n"
        '    """ Are two of them within 0.5?\n    >>> close([1.0, 1.2])\n    True\n    """\n',
        "entry_point": "close",
        "canonical_solution": "    return any(abs(a - b) < 0.5 for i, a in enumerate(numbers) for b in numbers[:i])\n",
        "test": "\n\nMETADATA = {'author': 'x'}\n\n\ndef check(candidate):\n    assert candidate([1.0, 1.2]) == True\n"
        "    assert candidate([1.0, 2.0]) == False\n    assert candidate([]) == False\n"
        "    assert abs(candidate([3.0, 3.4]) - 1) < 1e-6\n",
    }
]
ROWS: dict[str, list[dict[str, Any]]] = {"gsm8k": GSM8K, "math500": MATH500, "mbpp": MBPP, "humaneval": HUMANEVAL}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A JSONL file of `rows`, gzipped where its name says so."""
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
