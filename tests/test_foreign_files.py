"""Files and places that are not what a command expects: refused by name, and never changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fake_dlm import FakeTarget

from spot_infer import GenerationConfig, SpotError, generate, load_target
from spot_infer.atomic import write_file
from spot_infer.prompts_io import ResultsFile
from spot_train.tasks import load_task


@pytest.mark.parametrize("content", [b"precious notes", b'{"name": 1}', b'{"id": 0}\nnotes'])
def test_a_foreign_results_file_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "notes.jsonl"
    file.write_bytes(content)
    with pytest.raises(SpotError, match=r"notes\.jsonl"), ResultsFile(file, {}):
        pass
    assert file.read_bytes() == content


def test_a_torn_row_of_its_own_is_cut(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"id": 0, "sample": 0, "run": {}}\n{"id": 1, "sam')
    with ResultsFile(file, {}) as results:
        assert results.done == {(0, 0)}
    assert file.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("content", [None, b"not json\n", b"[1]\n", b"\xff\xfe\n", b'{"prompt": "a"}\n'])
def test_a_pool_that_is_none_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "pool.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SpotError, match=r"pool\.jsonl"):
        load_task("tiny", file)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpotError, match="can't be written"):
        write_file(tmp_path / "missing" / "rows.jsonl", b"")


@pytest.mark.parametrize("device", ["tpu", "meta", "cuda:99"])
def test_a_device_that_is_not_there_is_named(device: str) -> None:
    with pytest.raises(SpotError, match=device):
        load_target("builtin:data/tiny-sdar", device=device)


def test_numpy_token_ids_are_token_ids() -> None:
    config = GenerationConfig(max_new_tokens=6)
    ids = [3, 4, 5]
    (plain,) = generate(FakeTarget(), ids, config)
    assert generate(FakeTarget(), list(np.array(ids)), config)[0].tokens == plain.tokens
