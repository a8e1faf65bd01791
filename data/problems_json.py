"""JSON tasks: build an object, change a field, filter records, pick the best one, total a field."""

import json
from random import Random
from typing import Any

from problems import NAMES, Phrases, Problem

_CITIES = ["Oslo", "Rome", "Paris", "Bern", "Lima", "Cairo", "Delhi", "Tokyo"]
_COLORS = ["red", "blue", "green", "black", "white", "pink", "gold", "gray"]
_FIELDS = ("age", "score", "points", "level", "stock", "rank")

_BUILD = Phrases(
    seen=(
        "Make a JSON object for {n} with {f} {a} and {g} {s}.",
        "Write JSON: name {n}, {f} {a}, {g} {s}.",
        "{n} has {f} {a} and {g} {s}. Write this as JSON.",
        "Give a JSON object with name {n}, {f} {a} and {g} {s}.",
        "Turn this into JSON: {n}, {f} {a}, {g} {s}.",
        "As JSON: the name is {n}, the {f} is {a}, the {g} is {s}.",
        "Here is {n}: {f} {a}, {g} {s}. Give the JSON object.",
        "The {g} of {n} is {s} and the {f} is {a}. Make a JSON object.",
    ),
    unseen=(
        "Write this as a JSON object: name {n}, {f} {a}, {g} {s}.",
        "Here is {n} with {f} {a} and {g} {s}. Write JSON.",
        "The name is {n}, the {g} is {s} and the {f} is {a}. Turn this into JSON.",
    ),
)
_UPDATE = Phrases(
    seen=(
        "Here is an object: {r} Add {k} to {f}.",
        "Add {k} to the {f} of {r}",
        "In {r} make {f} larger by {k}.",
        "Take {r} and add {k} to {f}.",
        "Update {r}: add {k} to {f}.",
        "The {f} in {r} grows by {k}. Write the new object.",
        "{r} Raise {f} by {k}.",
        "Raise the {f} by {k} in this object: {r}",
    ),
    unseen=(
        "Here is an object: {r} Make {f} larger by {k}.",
        "Take this object and raise the {f} by {k}: {r}",
        "In {r} add {k} to the {f}.",
    ),
)
_FILTER = Phrases(
    seen=(
        "{r} Keep the records with {f} above {k}.",
        "From {r} take those with {f} above {k}.",
        "Which records have {f} above {k}? {r}",
        "Filter {r} by {f} above {k}.",
        "{r} Give all records with {f} above {k}.",
        "Keep only {f} above {k}: {r}",
        "Here are records: {r} Keep those with {f} above {k}.",
        "In {r}, find the records with {f} above {k}.",
    ),
    unseen=(
        "Here are records: {r} Which have {f} above {k}?",
        "Give only those with {f} above {k}: {r}",
        "Take {r} and keep the records with {f} above {k}.",
    ),
)
_BEST = Phrases(
    seen=(
        "{r} Which record has the largest {f}?",
        "Pick the record with the largest {f}: {r}",
        "From {r} give the record with the largest {f}.",
        "Find the one with the largest {f} in {r}",
        "{r} Give the record whose {f} is the largest.",
        "Here are records: {r} Who has the largest {f}?",
        "Who has the largest {f}? {r}",
        "In {r}, pick the one with the largest {f}.",
    ),
    unseen=(
        "Here are records: {r} Pick the one whose {f} is the largest.",
        "In {r}, which record has the largest {f}?",
        "Find who has the largest {f}: {r}",
    ),
)
_TOTAL = Phrases(
    seen=(
        "{r} What is the total {f}?",
        "Find the total {f} in {r}",
        "Add up the {f} of all records: {r}",
        "From {r} give the total {f}.",
        "Here are records: {r} Add up {f}.",
        "Sum the {f} over {r}",
        "{r} Give the sum of {f}.",
        "What is the sum of {f}? {r}",
    ),
    unseen=(
        "Here are records: {r} What is the sum of {f}?",
        "In {r}, add up the {f}.",
        "Give the total {f} of all records: {r}",
    ),
)


def _problem(task: str, wording: str, content: str, prompt: str, answer: str) -> Problem:
    scorer = {"type": "json", "value": json.loads(answer.splitlines()[-1])}
    return Problem("json", f"json_{task}", wording, content, prompt, answer, scorer)


def _records(rng: Random, field: str, largest: int = 9) -> list[dict[str, Any]]:
    values = rng.sample(range(1, largest + 1), 3)
    return [{"name": n, field: v} for n, v in zip(rng.sample(NAMES, 3), values, strict=True)]


def _detail(rng: Random) -> tuple[str, str]:
    return rng.choice((("city", rng.choice(_CITIES)), ("color", rng.choice(_COLORS))))


def build(rng: Random, wording: str) -> Problem:
    """An object from a sentence."""
    field, (extra, text) = rng.choice(_FIELDS), _detail(rng)
    record = {"name": rng.choice(NAMES), field: rng.randint(1, 60), extra: text}
    slots = {"n": record["name"], "f": field, "a": record[field], "g": extra, "s": text}
    answer = json.dumps(record)
    return _problem("build", wording, answer, _BUILD.pick(rng, wording, **slots), answer)


def update(rng: Random, wording: str) -> Problem:
    """One numeric field grows; the sum is worked out first."""
    field, (extra, text) = rng.choice(_FIELDS), _detail(rng)
    record: dict[str, Any] = {"name": rng.choice(NAMES), field: rng.randint(1, 20), extra: text}
    amount = rng.randint(1, 5)
    after = {**record, field: record[field] + amount}
    prompt = _UPDATE.pick(rng, wording, r=json.dumps(record), f=field, k=amount)
    answer = f"{field}: {record[field]} + {amount} = {after[field]}\n{json.dumps(after)}"
    return _problem("update", wording, f"{json.dumps(record)}|{amount}", prompt, answer)


def keep(rng: Random, wording: str) -> Problem:
    """The records above a bound."""
    field = rng.choice(_FIELDS)
    records = _records(rng, field)
    low, _, high = sorted(record[field] for record in records)
    bound = rng.randint(low, high - 1)
    kept = [record for record in records if record[field] > bound]
    prompt = _FILTER.pick(rng, wording, r=json.dumps(records), f=field, k=bound)
    values = ", ".join(str(record[field]) for record in kept)
    answer = f"Above {bound}: {values}\n{json.dumps(kept)}"
    return _problem("keep", wording, f"{json.dumps(records)}|{bound}", prompt, answer)


def best(rng: Random, wording: str) -> Problem:
    """The record with the largest value."""
    field = rng.choice(_FIELDS)
    records = _records(rng, field)
    top = max(records, key=lambda record: record[field])
    values = ", ".join(str(record[field]) for record in records)
    prompt = _BEST.pick(rng, wording, r=json.dumps(records), f=field)
    answer = f"The largest of {values} is {top[field]}\n{json.dumps(top)}"
    return _problem("best", wording, json.dumps(records), prompt, answer)


def total(rng: Random, wording: str) -> Problem:
    """The sum of a field, worked out."""
    field = rng.choice(_FIELDS)
    records = _records(rng, field, largest=6)
    a, b, c = (int(record[field]) for record in records)
    prompt = _TOTAL.pick(rng, wording, r=json.dumps(records), f=field)
    result = json.dumps({"total": a + b + c})
    answer = f"{a} + {b} = {a + b}\n{a + b} + {c} = {a + b + c}\n{result}"
    return _problem("total", wording, f"total|{json.dumps(records)}", prompt, answer)


TASKS = (build, update, keep, best, total)
