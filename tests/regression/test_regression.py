"""Every verb gives the numbers that it gave when `record.json` was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.regression.record import RECORD, collect, processor


def test_every_verb_gives_the_recorded_numbers(tmp_path: Path) -> None:
    """To the last digit on the processor of the record; on another one, features, losses and
    vectors nearly so, while a score of few videos may jump."""
    record = json.loads(RECORD.read_text())
    numbers = collect(tmp_path.resolve())
    if record["processor"] == processor():
        assert numbers == record["numbers"]
    else:
        for name in ("extract", "presets", "represent", "embed", "import"):
            assert_close(numbers[name], record["numbers"][name], name)
        assert_close(numbers["run"]["losses"], record["numbers"]["run"]["losses"], "losses")


def assert_close(numbers: Any, recorded: Any, path: str) -> None:
    assert type(numbers) is type(recorded), path
    if isinstance(numbers, dict):
        assert numbers.keys() == recorded.keys(), path
        for name in numbers:
            assert_close(numbers[name], recorded[name], f"{path}/{name}")
    elif isinstance(numbers, list):
        assert len(numbers) == len(recorded), path
        for index, (number, before) in enumerate(zip(numbers, recorded, strict=True)):
            assert_close(number, before, f"{path}/{index}")
    elif isinstance(numbers, float):
        assert numbers == pytest.approx(recorded, rel=2e-2, abs=2e-2), path
    else:
        assert numbers == recorded, path
