"""List tasks on four to six one-digit numbers; the answer restates the list or works step by step."""

from collections.abc import Sequence
from random import Random

from problems import Phrases, Problem, show

_WORDS = {
    "sort": Phrases(
        ("Sort {v}.", "Sort the list {v} from small to large.", "Put {v} in order.",
         "Order the numbers {v} from small to large.", "Here is a list: {v}. Sort it.",
         "Give {v} in sorted order.", "Write {v} sorted from small to large.",
         "Take {v} and sort it."),
        ("Here is a list: {v}. Put it in order.", "Take {v} and put the numbers in sorted order.",
         "Write the list {v} in order from small to large."),
    ),
    "sort_down": Phrases(
        ("Sort {v} from large to small.", "Sort the list {v} in falling order.",
         "Put {v} in order from large to small.", "Order {v}, largest first.",
         "Here is a list: {v}. Sort it from large to small.", "Give {v} in falling order.",
         "Write {v} sorted with the largest first.", "Take {v} and sort it, largest first."),
        ("Here is a list: {v}. Put it in falling order.", "Take {v} and sort it in falling order.",
         "Write the list {v} from large to small."),
    ),
    "reverse": Phrases(
        ("Reverse {v}.", "Reverse the list {v}.", "Write {v} backwards.",
         "Give {v} in reverse order.", "Here is a list: {v}. Reverse it.",
         "Read {v} from the end to the start.", "Turn {v} around.", "Take {v} and reverse it."),
        ("Here is a list: {v}. Write it backwards.", "Take the list {v} and turn it around.",
         "Write the numbers {v} in reverse."),
    ),
    "max": Phrases(
        ("What is the largest number in {v}?", "Find the largest of {v}.",
         "Give the maximum of {v}.", "Which number in {v} is the largest?",
         "Here is a list: {v}. Find the maximum.", "Pick the largest number from {v}.",
         "Take {v}. What is the maximum?", "Tell me the largest value in {v}."),
        ("Here is a list: {v}. Which number is the largest?", "Tell me the maximum of {v}.",
         "Find the largest value in the list {v}."),
    ),
    "min": Phrases(
        ("What is the smallest number in {v}?", "Find the smallest of {v}.",
         "Give the minimum of {v}.", "Which number in {v} is the smallest?",
         "Here is a list: {v}. Find the minimum.", "Pick the smallest number from {v}.",
         "Take {v}. What is the minimum?", "Tell me the smallest value in {v}."),
        ("Here is a list: {v}. Which number is the smallest?", "Tell me the minimum of {v}.",
         "Find the smallest value in the list {v}."),
    ),
    "running": Phrases(
        ("Give the running sum of {v}.", "Write the running sums of {v}.",
         "Find the running totals of {v}.", "Add up {v} step by step.",
         "Here is a list: {v}. Give its running sum.", "What is the running sum of {v}?",
         "Take {v} and write the running totals.", "Sum {v} step by step and keep each total."),
        ("Here is a list: {v}. Write the running totals.", "Take {v} and add up step by step.",
         "What are the running sums of the list {v}?"),
    ),
    "keep": Phrases(
        ("Keep the {w} numbers of {v}.", "Give only the {w} numbers in {v}.",
         "Which numbers in {v} are {w}?", "From {v} pick the {w} numbers.",
         "Here is a list: {v}. Keep the {w} ones.", "List the {w} numbers in {v}.",
         "Take {v} and keep what is {w}.", "Find all {w} numbers of {v}."),
        ("Here is a list: {v}. Which numbers are {w}?", "Take {v} and pick the {w} ones.",
         "Find only the {w} numbers in the list {v}."),
    ),
    "add": Phrases(
        ("Add {k} to each number in {v}.", "Add {k} to every element of {v}.",
         "Take {v} and add {k} to each.", "Here is a list: {v}. Add {k} to each number.",
         "Make each number of {v} larger by {k}.", "Write {v} with {k} added to each number.",
         "Give the list {v} plus {k}.", "For each number in {v} add {k}."),
        ("Here is a list: {v}. Make each number larger by {k}.",
         "Take the list {v} and add {k} to every element.", "Give {v} with {k} added to each."),
    ),
    "unique": Phrases(
        ("Remove the duplicates from {v}.", "Give the unique numbers of {v} in order.",
         "Drop repeated numbers from {v}.", "Keep each number of {v} once.",
         "Here is a list: {v}. Remove the duplicates.", "Write {v} without duplicates.",
         "Take {v} and drop what is repeated.", "List each number in {v} only once."),
        ("Here is a list: {v}. Keep each number only once.", "Take {v} and remove the duplicates.",
         "Write the list {v} without repeated numbers."),
    ),
    "count": Phrases(
        ("How many numbers in {v} are larger than {k}?", "Count the numbers in {v} above {k}.",
         "Count how many of {v} are more than {k}.", "How many of {v} are above {k}?",
         "Here is a list: {v}. How many are larger than {k}?",
         "In {v}, count what is larger than {k}.", "Take {v}. How many are above {k}?",
         "Tell me how many numbers in {v} are more than {k}."),
        ("Here is a list: {v}. Count the numbers above {k}.",
         "Take {v} and count what is larger than {k}.",
         "Tell me how many of {v} are above {k}."),
    ),
}  # fmt: skip


def _values(rng: Random, low: int = 4, high: int = 6) -> list[int]:
    return rng.sample(range(1, 10), rng.randint(low, high))


def _row(
    rng: Random, task: str, wording: str, values: Sequence[int], answer: str,
    result: object, **slots: object,
) -> Problem:  # fmt: skip
    prompt = _WORDS[task].pick(rng, wording, v=show(values), **slots)
    kind = "number" if isinstance(result, int) else "list"
    scorer = {"type": kind, "value": result}
    content = f"{list(values)}|{sorted(slots.items())}"
    return Problem("list", f"list_{task}", wording, content, prompt, answer, scorer)


def sort(rng: Random, wording: str) -> Problem:
    """Ascending or descending order."""
    values, down = _values(rng), rng.random() < 0.4
    result = sorted(values, reverse=down)
    label = "Largest first" if down else "Smallest first"
    answer = f"List: {show(values)}\n{label}: {show(result)}"
    return _row(rng, "sort_down" if down else "sort", wording, values, answer, result)


def reverse(rng: Random, wording: str) -> Problem:
    """The list from its end to its start."""
    values = _values(rng)
    result = values[::-1]
    answer = f"List: {show(values)}\nReversed: {show(result)}"
    return _row(rng, "reverse", wording, values, answer, result)


def extreme(rng: Random, wording: str) -> Problem:
    """The largest or the smallest number."""
    values = _values(rng, 4, 6)
    task, word = rng.choice((("max", "largest"), ("min", "smallest")))
    result = max(values) if task == "max" else min(values)
    answer = f"List: {show(values)}\nThe {word} number is {result}.\n#### {result}"
    return _row(rng, task, wording, values, answer, result)


def running(rng: Random, wording: str) -> Problem:
    """Running sums with every addition written out."""
    values = [rng.randint(1, 9)] + [rng.randint(1, 5) for _ in range(rng.randint(3, 5))]
    sums, lines = [values[0]], [f"start {values[0]}"]
    for value in values[1:]:
        lines.append(f"{sums[-1]} + {value} = {sums[-1] + value}")
        sums.append(sums[-1] + value)
    answer = "\n".join(lines) + f"\nSums: {show(sums)}"
    return _row(rng, "running", wording, values, answer, sums)


def keep(rng: Random, wording: str) -> Problem:
    """Only the even or only the odd numbers."""
    values, parity = _values(rng), rng.randint(0, 1)
    if not any(value % 2 == parity for value in values):
        values[rng.randrange(len(values))] = 2 * rng.randint(1, 4) + parity
    result = [value for value in values if value % 2 == parity]
    word = "odd" if parity else "even"
    answer = f"List: {show(values)}\nOnly {word}: {show(result)}"
    return _row(rng, "keep", wording, values, answer, result, w=word)


def add(rng: Random, wording: str) -> Problem:
    """The same small number added to each element, worked out one by one."""
    values, amount = _values(rng, 4, 5), rng.randint(1, 5)
    result = [value + amount for value in values]
    steps = "\n".join(f"{value} + {amount} = {value + amount}" for value in values)
    return _row(rng, "add", wording, values, f"{steps}\nResult: {show(result)}", result, k=amount)


def unique(rng: Random, wording: str) -> Problem:
    """Each number once, in order of first appearance."""
    values = _values(rng, 3, 4)
    for value in rng.sample(values, rng.randint(1, 2)):
        values.insert(rng.randint(0, len(values)), value)
    result = list(dict.fromkeys(values))
    answer = f"List: {show(values)}\nUnique: {show(result)}"
    return _row(rng, "unique", wording, values, answer, result)


def count(rng: Random, wording: str) -> Problem:
    """How many numbers are larger than a bound; they are listed first."""
    values, bound = _values(rng, 4, 6), rng.randint(2, 7)
    large = [value for value in values if value > bound]
    answer = f"Larger than {bound}: {show(large)}\nCount: {len(large)}\n#### {len(large)}"
    return _row(rng, "count", wording, values, answer, len(large), k=bound)


TASKS = (sort, reverse, extreme, running, keep, add, unique, count)
