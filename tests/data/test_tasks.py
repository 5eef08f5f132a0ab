"""Any column of a table can be the label, the target or the group; groups can be held out."""

from pathlib import Path
from typing import Any

import pytest

from clipset.data.catalog import Catalog, Video
from clipset.data.tasks import DataConfig, Task, join_tasks, read_tasks
from clipset.errors import CatalogError
from clipset.recipe import read_recipe

TASKS = {
    "topic": {"label": "label"},
    "order": {"label": "order"},
    "count": {"target": "n_topic"},
}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "labels.csv"
    lines = ["path,label,split,person,order,n_topic"]
    for number in range(8):
        split = "test" if number > 5 else "train"
        person = f"p{number // 2}"
        lines.append(f"{number}.mp4,topic{number % 3},{split},{person},{number % 2},{14 + number}")
    path.write_text("\n".join(lines) + "\n")
    return path


def read(table: Path, **settings: object) -> tuple[Task, ...]:
    config = DataConfig(**settings)  # type: ignore[arg-type]
    return read_tasks(table, config)


def test_a_recipe_names_the_columns_of_its_table(table: Path) -> None:
    recipe = read_recipe(None, ["data.columns.label=order", "data.columns.group=person"])
    [part] = read_tasks(table, recipe.data)
    assert part.catalog.classes == ("0", "1")
    assert {video.group for video in part.catalog} == {"p0", "p1", "p2", "p3"}


def test_a_column_that_is_not_there_is_named_with_those_that_are(table: Path) -> None:
    with pytest.raises(CatalogError, match=r"no column 'topic'.*n_topic"):
        read(table, columns={"label": "topic"})
    with pytest.raises(CatalogError, match="unknown catalog column 'colour'"):
        read(table, columns={"colour": "order"})


def test_columns_of_a_folder_are_refused(tmp_path: Path, table: Path) -> None:
    with pytest.raises(CatalogError, match="columns of a table"):
        read(tmp_path, columns={"label": "order"})
    [part] = read(table)
    with pytest.raises(CatalogError, match="columns of a table"):
        read_tasks(part.catalog, DataConfig(tasks=TASKS))


def test_tasks_of_official_lists_are_refused(tmp_path: Path) -> None:
    config = DataConfig(format="ucf101", task="order", tasks={"order": {"label": "order"}})
    with pytest.raises(CatalogError, match="the dataset ucf101 is not a table"):
        read_tasks(tmp_path, config)


def test_several_tasks_share_the_videos_of_a_table(table: Path) -> None:
    topic, order, count = read(table, tasks=TASKS)
    assert (topic.name, order.name, count.name) == ("topic", "order", "count")
    assert topic.catalog.classes == ("topic0", "topic1", "topic2")
    assert order.catalog.classes == ("0", "1")
    assert count.catalog.classes == ()
    assert [video.target for video in count.catalog] == [14.0 + n for n in range(8)]
    joined = join_tasks([topic, order, count])
    assert joined.name == "labels"
    assert joined.splits == ("test", "train")
    assert len(joined) == 8


def test_one_of_the_tasks_can_be_chosen(table: Path) -> None:
    [part] = read(table, tasks=TASKS, task="order")
    assert (part.name, part.catalog.classes) == ("", ("0", "1"))
    with pytest.raises(CatalogError, match="did you mean count"):
        DataConfig(tasks=TASKS, task="counts")
    with pytest.raises(CatalogError, match="label or target"):
        DataConfig(tasks={"order": {"group": "person"}})


def test_groups_of_the_train_split_become_the_validation_split(table: Path) -> None:
    columns = {"group": "person"}
    [part] = read(table, columns=columns, validation_groups=("p1",))
    splits = {video.group: video.split for video in part.catalog}
    assert splits == {"p0": "train", "p1": "val", "p2": "train", "p3": "test"}
    [part] = read(table, columns=columns, validation_groups=("p1",), test_split="val")
    assert {video.split for video in part.catalog} == {"train", "val"}


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (("p3",), "no training video of the group 'p3'"),
        (("p0", "p1", "p2"), "no training videos left"),
    ],
)
def test_groups_that_cannot_be_held_out_are_refused(
    table: Path, groups: tuple[str, ...], message: str
) -> None:
    with pytest.raises(CatalogError, match=message):
        read(table, columns={"group": "person"}, validation_groups=groups)


def test_the_seed_and_fraction_of_a_random_split_are_settings_of_the_data(tmp_path: Path) -> None:
    videos = (Video(id=f"{i}", path=tmp_path / f"{i}.mp4", label="ab"[i % 2]) for i in range(40))
    catalog = Catalog(name="videos", videos=tuple(videos))

    def test_videos(**settings: Any) -> set[str]:
        [task] = read_tasks(catalog, DataConfig(**settings))
        return {video.id for video in task.catalog.split("test")}

    assert test_videos() == test_videos(split_seed=0)
    assert test_videos() != test_videos(split_seed=1)
    assert (len(test_videos()), len(test_videos(test_fraction=0.5))) == (10, 20)


@pytest.mark.parametrize(
    "settings", [{"test_fraction": 0.0}, {"test_fraction": 1.0}, {"split_seed": -1}]
)
def test_an_impossible_split_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(CatalogError, match=f"{next(iter(settings))} must be .*, got"):
        DataConfig(**settings)


def test_a_folder_that_is_said_to_be_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="is not a file, but data"):
        read(tmp_path, format="table")


@pytest.mark.parametrize("name", ["store", "scores", "all"])
def test_a_task_may_not_have_the_name_of_a_part_of_the_run(name: str) -> None:
    with pytest.raises(CatalogError, match=f"a task cannot be called '{name}'"):
        DataConfig(tasks={name: {"label": "topic"}})
