"""Versions in a directory that several ingresses share."""

from __future__ import annotations

from pathlib import Path

from serve_app.model_shelf import MAX_STRAYS, ModelShelf


def numbers(directory: Path) -> list[int]:
    return sorted(int(path.name[1:]) for path in directory.glob("v*"))


def test_a_number_is_given_once(tmp_path: Path) -> None:
    one, other = ModelShelf(tmp_path / "models"), ModelShelf(tmp_path / "models")
    assert [one.claim()[0], other.claim()[0], one.claim()[0], other.claim(above=9)[0]] == [2, 3, 4, 10]


def test_the_newest_that_count_stay(tmp_path: Path) -> None:
    shelf = ModelShelf(tmp_path, max_kept=2)
    (tmp_path / "notes").mkdir()
    (tmp_path / "v1").mkdir()
    for _ in range(5):
        shelf.accept(shelf.claim()[0], {})
    assert numbers(tmp_path) == [1, 5, 6]
    assert (tmp_path / "notes").is_dir()


def test_what_is_in_training_stays_and_what_was_left_long_ago_goes(tmp_path: Path) -> None:
    shelf = ModelShelf(tmp_path, max_kept=1)
    left, _ = shelf.claim()
    withdrawn, _ = shelf.claim()
    shelf.accept(withdrawn, {})
    shelf.withdraw(withdrawn)
    first, _ = shelf.claim()
    shelf.accept(first, {})
    assert numbers(tmp_path) == [left, withdrawn, first]
    later, _ = shelf.claim(above=withdrawn + MAX_STRAYS)
    running, _ = shelf.claim()
    shelf.accept(later, {})
    assert numbers(tmp_path) == [later, running]


def test_what_is_not_whole_does_not_count(tmp_path: Path) -> None:
    shelf = ModelShelf(tmp_path)
    refused: list[str] = []
    assert ModelShelf(tmp_path / "absent").newest("", refused.append) is None
    for content in ("not json", "[]", '{"began_with": 5}'):
        (shelf.claim()[1] / "accepted.json").write_text(content)
    assert shelf.newest("", refused.append) is None
    shelf.withdraw(77)
    assert refused == []
