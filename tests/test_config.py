"""What every part of clipset writes and reads its files with."""

from pathlib import Path

from clipset.files import write_atomic


def test_a_result_is_not_lost_because_its_folder_was_not_there(tmp_path: Path) -> None:
    write_atomic(tmp_path / "not" / "there" / "result.json", b"{}")
    assert (tmp_path / "not" / "there" / "result.json").read_bytes() == b"{}"
    assert [path.name for path in (tmp_path / "not" / "there").iterdir()] == ["result.json"]
