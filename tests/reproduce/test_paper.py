"""The paper's numbers are those of its tables, and every table can be planned."""

from pathlib import Path

import pytest

from clipset.errors import ClipsetError
from clipset.recipe import Recipe, find_recipe
from clipset.reproduce.paper import BACKBONES, TABLES
from clipset.reproduce.plan import RESOURCES, find_plan, read_table_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
NUMBERS = {  # taken from the source of the paper row by row, not from our module
    "resources": """
        23.47 OOM OOM OOM 8.66
        11.42 22.80 OOM OOM 33.54
        5.49 9.27 23.62 OOM 28.83
        1.21 1.23 1.58 19.52 9224.65
    """,
    "ucf101": """
        87.20 85.19 35.05 49.14 96.82
        89.00 83.47 65.63 76.02 97.38
        91.27 89.55 66.53 84.53 97.91
        92.65 91.43 74.46 86.78 98.14
        91.17 93.60 71.97 87.04 98.04
        92.20 94.34 68.22 86.30 98.04
        92.94 95.00 76.07 89.92 98.46
        93.7 95.4 96.1 - -
    """,
    "hmdb51": """
        51.83 49.67 21.96 29.21 72.81
        56.01 51.56 37.18 51.30 71.83
        63.07 61.17 45.22 60.26 76.33
        66.33 63.92 52.15 62.35 78.36
        63.00 64.77 49.01 62.61 77.45
        63.98 66.16 47.32 61.50 76.86
        68.10 66.79 51.89 64.83 79.34
        67.2 73.6 73.3 - -
    """,
    "ssv2": """
        20.30 25.30 18.31 27.94 28.90 70.53
        25.26 27.16 21.24 30.18 33.25 70.63
        21.43 26.46 19.42 27.96 29.83 70.52
        29.24 30.99 24.26 34.39 35.60 70.57
        29.68 31.83 25.25 36.34 37.38 70.69
    """,
    "k400": """
        71.71 68.82 43.50 60.73 81.52
        71.78 68.38 43.96 60.66 81.44
        71.19 69.42 45.48 61.64 81.27
        72.18 69.28 44.85 62.15 81.70
        72.38 69.63 46.15 62.67 81.84
    """,
    "k400-low-shot": """
        66.43 56.43 31.25 48.42 79.79
        65.96 57.74 34.03 49.21 79.94
        65.44 58.68 30.47 48.27 79.37
        64.97 58.95 29.89 48.27 79.47
        67.01 59.52 33.92 50.36 80.47
    """,
    "lvu": """
        52.40 35.80 54.70 44.90 53.00 36.30 52.50
        57.14 40.79 67.44 62.61 54.71 48.80 44.75
        64.70 35.77 62.33 37.27 54.35 52.12 28.46
        73.52 40.65 68.83 46.36 57.94 56.38 39.23
        67.64 39.02 66.23 45.45 56.92 57.44 36.15
        70.58 40.65 68.83 47.27 57.17 58.51 36.92
        76.47 42.27 74.02 49.09 58.97 62.76 39.23
        52.94 38.21 53.24 36.36 51.79 57.44 33.84
        67.64 43.08 66.23 44.54 53.33 60.63 40.00
        62.35 41.46 62.42 47.27 52.56 59.57 40.00
        65.09 44.71 66.23 50.90 53.07 61.70 43.84
        67.64 45.52 71.42 51.81 55.72 65.95 46.92
    """,
    "ablation-losses": """
        91.80 92.20 64.50 63.59
        92.01 93.81 62.81 64.05
        93.20 92.99 64.57 65.61
    """,
    "ablation-masking": """
        93.18 93.25 64.37 64.83
        93.20 93.81 65.49 65.62
        93.15 93.06 64.18 65.22
        92.96 93.02 63.39 64.96
    """,
    "ablation-capacity": """
        - 92.62 - 63.16
        - 92.83 - 63.68
        - 92.86 - 64.39
        92.78 93.52 63.26 65.55
        93.20 93.81 65.49 65.62
        92.57 93.66 65.68 64.77
        92.33 93.25 64.83 65.55
        92.75 93.52 65.49 65.16
        92.86 92.93 65.49 64.84
    """,
    "ablation-clips-batch": """
        92.65 92.83 64.35 64.24
        92.70 93.07 64.57 64.37
        92.80 93.49 64.64 64.63
        92.67 93.49 64.85 64.50
        93.18 93.68 64.90 65.35
        93.20 93.81 65.49 65.62
        92.75 93.36 64.77 65.15
        92.96 93.57 64.96 65.48
        93.07 OOM 65.29 OOM
    """,
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_every_number_is_the_one_in_the_paper(name: str) -> None:
    table = TABLES[name]
    rows = [line.split() for line in NUMBERS[name].strip().splitlines()]
    assert [[table.cells[row, column] for column in table.columns] for row in table.rows] == rows


def test_single_numbers_stand_where_the_text_of_the_paper_says() -> None:
    assert TABLES["ucf101"].cells["SCALE linear", "SVT"] == "92.65"  # "92.7 %"
    assert TABLES["hmdb51"].cells["SCALE fine-tuned", "SVT"] == "68.10"
    assert TABLES["k400"].cells["SCALE fine-tuned", "VMAE B ft"] == "81.84"
    assert TABLES["ucf101"].cells["FT (reported)", "VMAE L"] == "-"
    assert TABLES["ablation-clips-batch"].cells["8 × 2 clips, batch 1024", "UCF101, ρBYOL"] == "OOM"


def test_recipes_carry_the_paper_s_numbers_in_their_headers() -> None:
    for name in ("ucf101", "hmdb51", "ssv2", "k400", "k400-low-shot", "lvu"):
        table, text = TABLES[name], find_recipe(name.replace("-", "_")).read_text("utf-8")
        header = [line for line in text.splitlines() if line.startswith("#")]
        for row in table.rows:
            if row not in table.quoted:
                printed = [table.cells[row, column] for column in table.columns]
                assert any(line.split()[-len(printed) :] == printed for line in header), row


@pytest.mark.parametrize("name", sorted(set(TABLES) - {RESOURCES}))
def test_every_table_of_scores_has_a_plan_and_a_recipe(name: str) -> None:
    plan = find_plan(name)
    assert isinstance(read_table_recipe(plan, None, ()), Recipe)
    assert set(plan.backbones) <= set(BACKBONES.values())
    assert {"svt_vitb16", "rbyol_slow_r50"} <= set(plan.backbones)
    runnable = [row.split(", ")[-1] for row in plan.table.rows if row not in plan.table.quoted]
    if plan.columns != "datasets":
        assert {row_plan.row for row_plan in plan.rows} == set(runnable)


def test_ablations_start_from_the_paper_s_base_setting_and_change_one_thing() -> None:
    base = read_table_recipe(find_plan("ablation-masking"), None, ())
    assert (base.pretrain.epochs, base.pretrain.batch_size, base.pretrain.mask_ratio) == (
        200,
        512,
        0.25,
    )
    changes = {row_plan.row: row_plan.changes for row_plan in find_plan("ablation-masking").rows}
    assert changes["0.35"] == ("pretrain.mask_ratio=0.35",)
    changes = {row_plan.row: row_plan.changes for row_plan in find_plan("ablation-capacity").rows}
    assert changes["width 512, 3 layers"] == (
        "pretrain.model.width=512",
        "pretrain.model.num_layers=3",
    )
    changes = {
        row_plan.row: row_plan.changes for row_plan in find_plan("ablation-clips-batch").rows
    }
    assert changes["6 × 2 clips, batch 1024"] == (
        "pretrain.clips_per_set=6",
        "pretrain.batch_size=1024",
    )
    changes = {row_plan.row: row_plan.changes for row_plan in find_plan("ablation-losses").rows}
    assert changes["both losses"] == ("pretrain.mask_ratio=0.2",)
    assert "pretrain.model.losses=masked" in changes["masked clip loss"]


def test_an_unknown_table_is_answered_with_near_names() -> None:
    with pytest.raises(ClipsetError, match="no table 'ucf'; did you mean ucf101"):
        find_plan("ucf")
