"""What a run's folder says is checked when it is read back: one line, no traceback, no markup."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tests.attacks.conftest import TINY, scores
from tests.miniatures import run

from clipset.errors import ProbeError
from clipset.evaluation.results import Comparison, LowShotCurve, ProbeResult, parse_records
from clipset.report.content import ReportContent
from clipset.report.page import render_report
from clipset.reproduce.paper import TABLES
from clipset.reproduce.table import Cell, empty_table, write_table

DEEP = "[" * 900 + "]" * 900
DEEPER = "[" * 100_000
HUGE = "1" + "0" * 400
RECORD = {
    "features": "scale", "probe": "linear", "metric": "top1", "value": 0.5, "interval": [0.4, 0.6],
    "n": 4, "seeds": [0], "selected_on": "train", "split": "test", "chance_level": 0.5,
    "per_class": {"a": 0.5, "b": None},
    "confusion": {"classes": ["a", "b"], "counts": [[1, 1], [1, 1]]},
    "ssl_split": "train", "seconds": 1.0, "num_candidates": 2,
}  # fmt: skip
DIFFERENCE = {
    "features": "scale", "probe": "linear", "baseline_features": "backbone",
    "baseline_probe": "linear", "metric": "top1", "difference": 0.1, "interval": [0.0, 0.2],
    "p": 0.5, "n": 4,
}  # fmt: skip
CURVE = {
    "features": "scale", "probe": "linear", "metric": "top1",
    "points": [{"fraction": 0.5, "videos": 4, "value": 0.5, "interval": [0.4, 0.6]}],
}  # fmt: skip
RETRIEVAL = {
    "features": "scale", "vectors": "mean", "mean_average_precision": 0.5, "interval": [0.4, 0.6],
    "recall": {"1": 0.5}, "n": 4, "num_train": 8,
}  # fmt: skip


def changed(record: dict[str, Any], **values: Any) -> str:
    return json.dumps([{**record, **values}])


def without(record: dict[str, Any], name: str) -> str:
    return json.dumps([{key: value for key, value in record.items() if key != name}])


def step(**values: Any) -> str:
    return json.dumps({"format": 1, "name": "a", "steps": [{"name": "probe", **values}]})


EDITS: dict[str, list[str]] = {
    "results.json": [
        "", "{", "3", "null", "[3]", "[[]]", '["features"]', "[NaN]", '[{"value": 1e999}]', DEEP,
        DEEPER, "\xff", without(RECORD, "value"), changed(RECORD, value="high"),
        changed(RECORD, value=None), changed(RECORD, value=2), changed(RECORD, value=10**400),
        changed(RECORD, metric="mse", value=1e308), changed(RECORD, metric=3),
        changed(RECORD, interval=[0.6, 0.4]), changed(RECORD, interval=[0.1]),
        changed(RECORD, n=-1), changed(RECORD, n=10**400), changed(RECORD, seeds="all"),
        changed(RECORD, chance_level=-3), changed(RECORD, per_class={"a": 1e300}),
        changed(RECORD, confusion={"classes": ["a"], "counts": [[-1]]}),
        changed(RECORD, confusion={"classes": ["a"], "counts": [[1e300]]}),
        changed(RECORD, confusion={"classes": ["a"], "counts": [1]}),
        changed(RECORD, task="split1", ssl_split=4), changed(RECORD, selected_on=[DEEP]),
    ],
    "comparisons.json": [
        "{}", "[3]", DEEP, without(DIFFERENCE, "interval"), changed(DIFFERENCE, difference=1e308),
        changed(DIFFERENCE, interval=[1, 0]), changed(DIFFERENCE, p=7), changed(DIFFERENCE, p="x"),
    ],
    "low_shot.json": [
        "7", '["x"]', DEEP, without(CURVE, "points"), changed(CURVE, points=[{}]),
        *(changed(CURVE, points=[{**CURVE["points"][0], **change}]) for change in (
            {"fraction": 0}, {"fraction": -1}, {"fraction": 1e300}, {"value": 1e300},
            {"videos": -1}, {"interval": [None, 1]},
        )),
    ],
    "retrieval.json": [
        "{}", "[3]", DEEP, without(RETRIEVAL, "recall"), changed(RETRIEVAL, interval=[1, 0]),
        changed(RETRIEVAL, mean_average_precision=7), changed(RETRIEVAL, recall={"<b>": 1}),
        changed(RETRIEVAL, recall={"1": "x"}), changed(RETRIEVAL, n=-1),
    ],
    "run.json": [
        "[]", "{}", DEEP, '{"format": 1, "recipe": 3}', '{"format": 1, "environment": [1]}',
        '{"format": 1, "name": {}}', '{"format": 1, "seed": "x"}', '{"format": 1, "steps": {}}',
        '{"format": 1, "steps": [1]}', '{"format": 1, "steps": [{}]}', step(seconds=-1),
        step(seconds=10**400), step(seconds="x"), step(name="../../etc"), step(name=3),
        '{"format": 1, "recipe": ' + '{"a":' * 500 + "1" + "}" * 501,
    ],
}  # fmt: skip
DAMAGED_METRICS = [
    "x", "[1]", "3", '{"loss": 1}', '{"epoch": null, "loss": 1}', '{"epoch": 1, "loss": "x"}',
    '{"epoch": 1, "loss": {}}', '{"epoch": 1, "loss": 1e308}', f'{{"epoch": {HUGE}}}',
    '{"epoch": 1, "loss": 2}\n{"epoch": 2, "lo', f'{{"epoch": 1, "loss": {DEEP}}}', DEEP, DEEPER,
    "\xff",
]  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_file_is_one_line(
    name: str, finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = finished_run / name
    good = path.read_bytes() if path.is_file() else None
    for edit in EDITS[name]:
        path.write_bytes(edit.encode("latin-1"))
        assert run("report", finished_run, "--quiet") == 2, edit[:200]
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith("clipset: "), edit[:200]
        assert Path(name).name in line or name == "results.json", (edit[:200], line)
    if good is not None:
        path.write_bytes(good)
        assert run("report", finished_run) == 0


def test_damaged_metrics_of_a_training_cost_the_report_its_curves_alone(
    finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = finished_run / "model" / "metrics.jsonl", finished_run / "report.html"
    for edit in DAMAGED_METRICS:
        path.write_bytes(edit.encode("latin-1"))
        page.unlink()
        assert run("report", finished_run) == 0, edit[:200]
        [line] = [x for x in capsys.readouterr().err.splitlines() if "training curves" in x]
        assert "the report has no training curves: line " in line, edit[:200]
        assert str(path) in line, edit[:200]
        assert len(line) < 600, edit[:200]
        assert "Training" in page.read_text(), edit[:200]


def test_odd_but_honest_numbers_get_a_page(finished_run: Path) -> None:
    metrics = finished_run / "model" / "metrics.jsonl"
    odd = [
        '{"epoch": 1, "loss": null, "spread": 5e-324}\n{"epoch": 2, "loss": 3e38, "spread": 0}',
        '{"epoch": 1, "loss": 1e-300}\n{"epoch": 2, "loss": 2e-300}',
        "",
    ]
    for text in odd:
        metrics.write_text(text)
        assert run("report", finished_run) == 0, text
    for value in (0.0, 5e-324, 1e-15, 1e99):
        same = {"metric": "mse", "value": value, "interval": [value, value], "chance_level": value}
        (finished_run / "results.json").write_text(changed(RECORD, **same, per_class={}))
        gap = changed(DIFFERENCE, metric="mse", difference=value, interval=[value, value], p=None)
        (finished_run / "comparisons.json").write_text(gap)
        assert run("report", finished_run) == 0, value


ABOUT: list[dict[str, str]] = [
    {"seeds": "[1, 2]"}, {"seeds": DEEPER}, {"seeds": "{"}, {"classes": "3"}, {"ids": '["one"]'},
]  # fmt: skip
ARRAYS: list[dict[str, np.ndarray]] = [
    {"truth": np.zeros((2, 2), np.int64)},
    {"scale/linear": np.zeros((1, 2), np.float32)},
    {"scale/linear": np.full((1, 2, 2), np.nan, np.float32)},
]


def test_edited_predictions_are_one_line(
    finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = finished_run / "predictions.safetensors"
    with safe_open(path, "np") as file:
        about = dict(file.metadata())
    arrays = load_file(path)
    edits = [(arrays, about | change) for change in ABOUT]
    edits += [(arrays | change, about) for change in ARRAYS]
    edits += [(arrays, {}), ({"truth": arrays["truth"]}, about)]
    for edited, said in edits:
        save_file(edited, path, metadata=said)
        assert run("report", finished_run) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith(f"clipset: {path} holds no predictions (")


def test_edited_vectors_are_one_line(
    finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = finished_run / "vectors" / "vectors.safetensors"
    good = path.read_bytes()
    for content in (b"", good[:100], b"\xff" * 64):
        path.write_bytes(content)
        assert run("report", finished_run) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith(f"clipset: the vectors in {path.parent} are damaged: ")


def test_edited_results_are_made_again_when_a_run_goes_on(
    finished_run: Path, videos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = ("run", videos, "--out", finished_run, *TINY, "--quiet")
    before = scores(finished_run)
    for edit in (changed(RECORD, value=0.999), without(RECORD, "ssl_split"), "[1]", "["):
        (finished_run / "results.json").write_text(edit)
        assert run(*again) == 0
        assert scores(finished_run) == before
    capsys.readouterr()
    (finished_run / "run.json").write_text('{"format": 1, "steps": [{"x": 1}]}')
    assert run(*again) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("clipset: ")


def test_edits_never_become_markup_of_the_page(finished_run: Path) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    edits = {"features": evil, "probe": evil, "selected_on": evil, "split": evil, "metric": evil}
    classes = {"classes": [evil, "b"], "counts": [[1, 0], [0, 1]]}
    record = changed(RECORD, **edits, confusion=classes, per_class={evil: 0.5})
    (finished_run / "results.json").write_text(record)
    named = {"features": evil, "probe": evil}
    (finished_run / "comparisons.json").write_text(changed(DIFFERENCE, **named))
    (finished_run / "low_shot.json").write_text(changed(CURVE, **named))
    (finished_run / "model" / "metrics.jsonl").write_text(json.dumps({"epoch": 1, evil: 2.0}))
    content = json.loads((finished_run / "run.json").read_text())
    content |= {"name": evil, "recipe": {evil: evil}, "environment": {evil: evil}}
    (finished_run / "run.json").write_text(json.dumps(content))
    assert run("report", finished_run) == 0
    page = (finished_run / "report.html").read_text()
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert "<img src=x" not in page


def test_a_part_is_a_plain_name_and_its_link_leads_into_the_run(finished_run: Path) -> None:
    part = finished_run / "javascript:alert(1)"
    part.mkdir()
    shutil.copy(finished_run / "results.json", part / "results.json")
    (finished_run / "results.json").write_text(changed(RECORD, task=part.name))
    (finished_run / "run.json").write_text(step(name=part.name))
    assert run("report", finished_run) == 0
    page = (finished_run / "report.html").read_text()
    assert 'href="javascript%3Aalert%281%29/report.html"' in page
    assert 'href="javascript:' not in page


@pytest.mark.parametrize(
    "change",
    [
        {"result": {}}, {"result": {"value": "x"}}, {"result": {**RECORD, "seeds": 3}},
        {"task": "split1"}, {"tasks": ["a", "b"]}, {"result": {**RECORD, "value": 1e308}},
        {"task": "a", "tasks": ["a"], "result": {**RECORD, "interval": None}}, {"result": None},
    ],
)  # fmt: skip
def test_an_edited_table_of_reproduce_is_one_line(
    change: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = empty_table(TABLES["ucf101"])
    place = {"row": table.rows[0], "column": table.columns[0]}
    result = msgspec.convert(RECORD, type=ProbeResult)
    table.put(Cell(**place, status="done", fingerprint="x", result=result))
    write_table(table, tmp_path)
    render = ("reproduce", "ucf101", "--out", tmp_path, "--render")
    assert run(*render) == 0
    content = json.loads((tmp_path / "table.json").read_text())
    content["cells"][0] |= change
    (tmp_path / "table.json").write_text(json.dumps(content))
    capsys.readouterr()
    assert run(*render) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("clipset: ")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(
    name=st.sampled_from(sorted(RECORD | DIFFERENCE | CURVE)),
    value=JSON,
    metric=st.sampled_from(["top1", "mse"]),
)
@example("points", [{"fraction": -1.0, "videos": 1, "value": 0.5}], "top1")
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_json_in_a_record_gives_a_page_or_one_clear_error(
    name: str, value: Any, metric: str
) -> None:
    change = {"metric": metric, name: value}
    records, comparisons, low_shot = (
        [{**base, **change}] if name in base else [] for base in (RECORD, DIFFERENCE, CURVE)
    )
    with suppress(ProbeError):
        content = ReportContent(
            title="edited",
            results=parse_records(records, ProbeResult, "results.json"),
            comparisons=parse_records(comparisons, Comparison, "comparisons.json"),
            low_shot=parse_records(low_shot, LowShotCurve, "low_shot.json"),
        )
        render_report(content)
