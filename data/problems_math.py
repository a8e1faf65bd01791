"""Word problems of one to three steps; every step restates its operands."""

from random import Random

from problems import NAMES, OBJECTS, Phrases, Problem

_OPEN = Phrases(
    seen=(
        "{n} has {a} {o}.",
        "{n} starts with {a} {o}.",
        "At first {n} has {a} {o}.",
        "{n} owns {a} {o}.",
        "In the morning {n} has {a} {o}.",
        "{n} keeps {a} {o} in a box.",
        "{n} has a bag of {a} {o}.",
        "Today {n} owns {a} {o}.",
        "There are {a} {o} in the bag of {n}.",
    ),
    unseen=(
        "{n} has a box with {a} {o}.",
        "In the box of {n} there are {a} {o}.",
        "At first there are {a} {o} in the box of {n}.",
    ),
)
_GAIN = Phrases(
    seen=(
        "{n} buys {k} more.",
        "{n} finds {k} more.",
        "Then {n} gets {k} more.",
        "A friend gives {n} {k} more.",
        "Later {n} picks {k} more.",
        "{n} adds {k} more.",
        "Then {n} wins {k} more.",
        "After that {n} makes {k} more.",
    ),
    unseen=(
        "After that {n} gets {k} more.",
        "Today a friend finds {k} more for {n}.",
        "Later {n} wins {k} more.",
    ),
)
_LOSS = Phrases(
    seen=(
        "{n} loses {k}.",
        "{n} gives away {k}.",
        "Then {n} sells {k}.",
        "A friend takes {k}.",
        "Later {n} drops {k}.",
        "{n} uses {k}.",
        "Then {n} throws away {k}.",
        "After that {n} breaks {k}.",
    ),
    unseen=("After that {n} loses {k}.", "Later a friend takes {k} away.", "Today {n} sells {k}."),
)
_NOW = Phrases(
    seen=(
        "How many {o} does {n} have now?",
        "How many {o} are left?",
        "How many {o} does {n} have at the end?",
        "Find the number of {o} that {n} has now.",
        "Count the {o} of {n}.",
        "What is the number of {o} now?",
        "How many {o} are there now?",
        "Tell me how many {o} {n} has.",
    ),
    unseen=(
        "Tell me the number of {o} at the end.",
        "What number of {o} does {n} have now?",
        "Find how many {o} are there at the end.",
    ),
)
_GROUPS = Phrases(
    seen=(
        "{n} has {g} {c} with {s} {o} each.",
        "There are {g} {c} with {s} {o} in each.",
        "{n} fills {g} {c} with {s} {o} each.",
        "Each of {g} {c} holds {s} {o}.",
        "{n} buys {g} {c} of {s} {o}.",
        "{g} {c} have {s} {o} each.",
        "In each of {g} {c} there are {s} {o}.",
        "{n} owns {g} {c}, each with {s} {o}.",
    ),
    unseen=(
        "{n} keeps {g} {c} and each holds {s} {o}.",
        "There are {g} {c}, each of {s} {o}.",
        "{n} starts with {g} {c} that have {s} {o} each.",
    ),
)
_MORE = Phrases(
    seen=(
        "{n} has {a} {o}. {m} has {k} more than {n}.",
        "{n} owns {a} {o}. {m} owns {k} more.",
        "{n} finds {a} {o} and {m} finds {k} more than {n}.",
        "{m} has {k} more {o} than {n}, who has {a}.",
        "There are {a} {o} in the bag of {n}. {m} has {k} more.",
        "{n} makes {a} {o}. Then {m} makes {k} more than {n}.",
        "{n} picks {a} {o} and {m} picks {k} more.",
        "{n} buys {a} {o}. {m} buys {k} more than that.",
    ),
    unseen=(
        "{n} keeps {a} {o}. {m} keeps {k} more than {n}.",
        "{n} wins {a} {o} and {m} wins {k} more than that.",
        "{m} buys {k} more {o} than {n}, who buys {a}.",
    ),
)
_TOGETHER = Phrases(
    seen=(
        "How many {o} do they have together?",
        "How many {o} do they all have?",
        "How many is that together?",
        "Find the total number of {o}.",
        "What is the total?",
        "How many {o} are there together?",
        "Count all the {o}.",
        "Tell me how many {o} they have in total.",
    ),
    unseen=(
        "Tell me the total number of {o}.",
        "How many {o} are there in total?",
        "Find how many {o} they all have together.",
    ),
)
_THREE = Phrases(
    seen=(
        "{n} has {a} {o}, {m} has {b} and {p} has {c}.",
        "{n} finds {a} {o}. {m} finds {b}. {p} finds {c}.",
        "{n}, {m} and {p} have {a}, {b} and {c} {o}.",
        "{n} buys {a} {o}, {m} buys {b}, {p} buys {c}.",
        "There are {a} {o} from {n}, {b} from {m} and {c} from {p}.",
        "{n} makes {a} {o}, then {m} makes {b} and {p} makes {c}.",
        "{n} owns {a} {o}. {m} owns {b} and {p} owns {c}.",
        "{a} {o} are from {n}, {b} from {m}, {c} from {p}.",
    ),
    unseen=(
        "{n} picks {a} {o}, then {m} picks {b} and {p} picks {c}.",
        "{n}, {m} and {p} own {a}, {b} and {c} {o}.",
        "{n} wins {a} {o}. {m} wins {b} and {p} wins {c}.",
    ),
)


def _number(value: int) -> dict[str, object]:
    return {"type": "number", "value": value}


def change(rng: Random, wording: str) -> Problem:
    """A count that goes up and down one to four times."""
    name, thing, start = rng.choice(NAMES), rng.choice(OBJECTS), rng.randint(4, 15)
    sentences = [_OPEN.pick(rng, wording, n=name, a=start, o=thing)]
    lines = [f"{name} has {start} {thing}."]
    value, moves = start, []
    for _ in range(rng.choice((1, 2, 2, 3, 3, 4))):
        amount = rng.randint(1, 5)
        gain = value <= amount or (value < 16 and rng.random() < 0.5)
        moves.append(amount if gain else -amount)
        phrases, sign = (_GAIN, "+") if gain else (_LOSS, "-")
        sentences.append(phrases.pick(rng, wording, n=name, k=amount))
        lines.append(f"{value} {sign} {amount} = {value + moves[-1]} {thing}")
        value += moves[-1]
    sentences.append(_NOW.pick(rng, wording, n=name, o=thing))
    lines.append(f"#### {value}")
    content = f"{name}|{thing}|{start}|{moves}"
    return Problem(
        "math",
        "math_change",
        wording,
        content,
        " ".join(sentences),
        "\n".join(lines),
        _number(value),
    )


def groups(rng: Random, wording: str) -> Problem:
    """Equal groups, then a few more or fewer."""
    name, thing = rng.choice(NAMES), rng.choice(OBJECTS)
    box = rng.choice(("bags", "jars", "shelves", "rows", "piles", "bowls"))
    count, size, amount = rng.randint(2, 4), rng.randint(2, 5), rng.randint(1, 5)
    product = count * size
    gain = product <= amount or rng.random() < 0.5
    result = product + amount if gain else product - amount
    phrases, sign = (_GAIN, "+") if gain else (_LOSS, "-")
    prompt = " ".join(
        (
            _GROUPS.pick(rng, wording, n=name, g=count, c=box, s=size, o=thing),
            phrases.pick(rng, wording, n=name, k=amount),
            _NOW.pick(rng, wording, n=name, o=thing),
        )
    )
    answer = (
        f"{count} {box} of {size}: {count} * {size} = {product} {thing}\n"
        f"{product} {sign} {amount} = {result} {thing}\n#### {result}"
    )
    content = f"{name}|{thing}|{box}|{count}|{size}|{sign}{amount}"
    return Problem("math", "math_groups", wording, content, prompt, answer, _number(result))


def compare(rng: Random, wording: str) -> Problem:
    """One person has more than another; how many together."""
    name, other = rng.sample(NAMES, 2)
    thing, start, amount = rng.choice(OBJECTS), rng.randint(2, 6), rng.randint(1, 5)
    more = start + amount
    prompt = " ".join(
        (
            _MORE.pick(rng, wording, n=name, m=other, a=start, k=amount, o=thing),
            _TOGETHER.pick(rng, wording, o=thing),
        )
    )
    answer = (
        f"{other} has {start} + {amount} = {more} {thing}\n"
        f"{other} and {name}: {more} + {start} = {start + more} {thing}\n#### {start + more}"
    )
    content = f"{name}|{other}|{thing}|{start}|{amount}"
    return Problem("math", "math_compare", wording, content, prompt, answer, _number(start + more))


def three(rng: Random, wording: str) -> Problem:
    """The total of three people."""
    name, other, third = rng.sample(NAMES, 3)
    thing = rng.choice(OBJECTS)
    a, b, c = rng.randint(2, 12), rng.randint(1, 5), rng.randint(1, 5)
    slots = {"n": name, "m": other, "p": third, "a": a, "b": b, "c": c, "o": thing}
    prompt = f"{_THREE.pick(rng, wording, **slots)} {_TOGETHER.pick(rng, wording, o=thing)}"
    answer = (
        f"{name} and {other}: {a} + {b} = {a + b}\nwith {third}: {a + b} + {c} = {a + b + c} {thing}\n#### {a + b + c}"
    )
    content = f"{name}|{other}|{third}|{thing}|{a}|{b}|{c}"
    return Problem("math", "math_three", wording, content, prompt, answer, _number(a + b + c))


TASKS = (change, groups, compare, three)
