"""Small Python functions made of a filter, a map and a reduction, with tests that can be run."""

from random import Random

from problems import Phrases, Problem

_VERBS = ["get", "make", "find", "take", "pick", "use", "run", "read"]
_NOUNS = ["all", "part", "rest", "some", "item", "value", "result", "score"]
_LISTS = ["values", "nums", "items", "data", "numbers", "row", "scores", "points"]
_SCALARS = ["n", "x", "value", "num", "a", "score", "count", "size"]

_ASK = Phrases(
    seen=(
        "Write a function {f} that takes {a} and returns {w}.",
        "Write {f}({a}) that returns {w}.",
        "Define a Python function {f} of {a} that gives {w}.",
        "Make a function {f} with argument {a}. It returns {w}.",
        "In Python, write {f}({a}). It should return {w}.",
        "Give me a function called {f} that takes {a} and gives {w}.",
        "Please write the function {f} with argument {a} that returns {w}.",
        "Define {f}({a}) to return {w}.",
    ),
    unseen=(
        "Please define a function called {f} that takes {a} and returns {w}.",
        "Make {f}({a}) in Python. It should return {w}.",
        "Write the Python function {f} of {a} to return {w}.",
    ),
)
_FILTERS = {
    "{x} % 2 == 0": ("even",),
    "{x} % 2 == 1": ("odd",),
    "{x} > {k}": ("larger than {k}", "above {k}", "more than {k}"),
    "{x} < {k}": ("smaller than {k}", "below {k}", "less than {k}"),
}
_MAPS = {
    "{x} + {k}": ("plus {k}", "with {k} added"),
    "{x} * {k}": ("times {k}", "multiplied by {k}"),
    "{x} - {k}": ("minus {k}", "with {k} taken away"),
}
_LIST_WORDS = Phrases(
    seen=(
        "each number of {a} that is {t}, {m}",
        "the numbers in {a} that are {t}, each {m}",
        "a list of those {a} that are {t}, {m}",
        "all numbers {t} in {a}, each {m}",
    ),
    unseen=(
        "a list of all numbers in {a} that are {t}, {m}",
        "those numbers of {a} that are {t}, each {m}",
    ),
)
_SUM_WORDS = Phrases(
    seen=(
        "the sum of the numbers in {a} that are {t}, each {m}",
        "the sum over {a} of what is {t}, {m}",
        "the total of all numbers {t} in {a}, each {m}",
        "the total of those {a} that are {t}, {m}",
    ),
    unseen=(
        "the sum of all numbers {t} in {a}, {m}",
        "the total over {a} of those that are {t}, each {m}",
    ),
)
_COUNT_WORDS = Phrases(
    seen=(
        "how many numbers in {a} are {t}",
        "the count of numbers in {a} that are {t}",
        "the number of {a} that are {t}",
        "how many of {a} are {t}",
    ),
    unseen=("the count of those {a} that are {t}", "how many of the numbers in {a} are {t}"),
)
_BRANCH_WORDS = Phrases(
    seen=(
        "{a} {m} if {a} is {t}, else {a} {e}",
        "{a} {m} when it is {t} and {a} {e} if not",
        "{a} {e}, but {a} {m} if it is {t}",
        "{a} {m} if it is {t}, otherwise {a} {e}",
    ),
    unseen=(
        "{a} {m} when {a} is {t}, otherwise {a} {e}",
        "{a} {m} if it is {t} and {a} {e} if not",
    ),
)


def _test(rng: Random, var: str) -> tuple[str, str]:
    form = rng.choice(tuple(_FILTERS))
    bound = rng.randint(2, 9)
    return form.format(x=var, k=bound), rng.choice(_FILTERS[form]).format(k=bound)


def _map(rng: Random, var: str) -> tuple[str, str]:
    form = rng.choice(tuple(_MAPS))
    amount = rng.randint(2, 9)
    return form.format(x=var, k=amount), rng.choice(_MAPS[form]).format(k=amount)


def _problem(rng: Random, task: str, wording: str, name: str, arg: str, what: str, code: str, inputs: list) -> Problem:
    scope: dict = {}
    exec(code, scope)
    tests = [f"assert {name}({value!r}) == {scope[name](value)!r}" for value in inputs]
    prompt = _ASK.pick(rng, wording, f=name, a=arg, w=what)
    scorer = {"type": "code", "function": name, "tests": tests}
    return Problem("code", f"code_{task}", wording, code, prompt, code, scorer)


def _name(rng: Random) -> str:
    return f"{rng.choice(_VERBS)}_{rng.choice(_NOUNS)}"


def _lists(rng: Random) -> list[list[int]]:
    return [list(range(12)), [rng.randint(0, 20) for _ in range(8)], []]


def comprehension(rng: Random, wording: str) -> Problem:
    """A list comprehension with a filter and a map."""
    name, arg = _name(rng), rng.choice(_LISTS)
    test, test_words = _test(rng, "x")
    value, map_words = _map(rng, "x")
    code = f"def {name}({arg}):\n    return [{value} for x in {arg} if {test}]"
    what = _LIST_WORDS.pick(rng, wording, a=arg, t=test_words, m=map_words)
    return _problem(rng, "comprehension", wording, name, arg, what, code, _lists(rng))


def loop(rng: Random, wording: str) -> Problem:
    """A loop that sums mapped numbers or counts those that pass the filter."""
    name, arg = _name(rng), rng.choice(_LISTS)
    test, test_words = _test(rng, "x")
    value, map_words = _map(rng, "x")
    if rng.random() < 0.35:
        value, phrases = "1", _COUNT_WORDS
    else:
        phrases = _SUM_WORDS
    code = (
        f"def {name}({arg}):\n    out = 0\n    for x in {arg}:\n"
        f"        if {test}:\n            out += {value}\n    return out"
    )
    what = phrases.pick(rng, wording, a=arg, t=test_words, m=map_words)
    return _problem(rng, "loop", wording, name, arg, what, code, _lists(rng))


def branch(rng: Random, wording: str) -> Problem:
    """One number, two cases."""
    name, arg = _name(rng), rng.choice(_SCALARS)
    test, test_words = _test(rng, arg)
    value, map_words = _map(rng, arg)
    other, other_words = _map(rng, arg)
    code = f"def {name}({arg}):\n    if {test}:\n        return {value}\n    return {other}"
    what = _BRANCH_WORDS.pick(rng, wording, a=arg, t=test_words, m=map_words, e=other_words)
    return _problem(rng, "branch", wording, name, arg, what, code, list(range(12)))


def steps(rng: Random, wording: str) -> Problem:
    """One number through two to four operations."""
    name, arg = _name(rng), rng.choice(_SCALARS)
    parts = [_map(rng, "y") for _ in range(rng.randint(2, 4))]
    lines = [f"    y = {parts[0][0].replace('y', arg, 1)}"]
    lines += [f"    y = {value}" for value, _ in parts[1:]]
    code = "\n".join([f"def {name}({arg}):", *lines, "    return y"])
    joiner = ", then " if wording == "seen" else " and then "
    what = f"{arg} " + joiner.join(words for _, words in parts)
    return _problem(rng, "steps", wording, name, arg, what, code, [0, 1, 7, 12])


TASKS = (comprehension, loop, branch, steps)
