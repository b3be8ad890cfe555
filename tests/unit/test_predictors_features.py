"""What a model sees of a text: finite, bounded, and never nothing to learn from."""

import math
import re
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from predictors.features import CLIP, LENGTH_FEATURES, MAX_CHARACTERS, TextFeatures, length_features, terms

ODD_TEXTS = ["", " ", "a", "1 2", "3 + 4", "???", "你好世界", "Привет, мир", "🎉🎉", "the a of", "\x00\n\x00", "_", "٣"]


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_any_text_has_finite_length_features(text: str) -> None:
    found = length_features(text)
    assert len(found) == len(LENGTH_FEATURES)
    assert all(map(math.isfinite, found))


@pytest.mark.parametrize("text", [text for text in ODD_TEXTS if text.strip("\x00\n ")])
def test_any_visible_text_has_a_vocabulary(text: str) -> None:
    features = TextFeatures().fit([text])
    assert features.terms_
    assert features.knows(text)


def test_blank_texts_leave_only_their_lengths() -> None:
    features = TextFeatures().fit(["", "  "])
    assert features.terms_ == []
    assert features.transform(["word"]).shape == (1, len(LENGTH_FEATURES))
    assert not features.knows("word")


def test_terms_are_words_ideographs_digits_and_signs() -> None:
    assert terms("Sum_12: 你好, été!") == ("sum", "_", "1", "2", ":", "你", "好", ",", "été", "!")


def test_what_stands_beyond_the_limit_is_not_seen() -> None:
    text = "word " * MAX_CHARACTERS
    features = TextFeatures().fit(["word"])
    assert_allclose(features.transform([text]), features.transform([text[:MAX_CHARACTERS]]))
    assert length_features(text) == length_features(text + "and a tail?")


def test_counts_say_what_stands_there() -> None:
    found = dict(zip(LENGTH_FEATURES, length_features("How many? 12 and 3,500.\nTwo (2) = x."), strict=True))
    assert found["questions"] == pytest.approx(math.log(2))
    assert found["numbers"] == pytest.approx(math.log(4))
    assert found["largest_number"] == pytest.approx(math.log1p(3500))
    assert found["lines"] == pytest.approx(math.log(2))
    assert found["brackets"] == pytest.approx(math.log(3))
    assert found["beyond_first_line"] == pytest.approx(math.log1p(len("\nTwo (2) = x.")))


@pytest.mark.parametrize(
    ("text", "computations"),
    [
        ("2 x 4 = 8, and 8 + $5 dollars = $13.", 2),
        ("Total = 2287720 / 2 = 1143860\nTotal = 2287720 + 1143860 = 3431580", 2),
        ("3x = 12, so x = 4", 0),
        ("a = b + c", 0),
        ("2 + 3\n= 5", 0),
        ("5 + 6 " + "apples " * 7 + "= 11", 0),
    ],
)
def test_a_computation_is_an_operation_whose_result_is_stated(text: str, computations: int) -> None:
    found = dict(zip(LENGTH_FEATURES, length_features(text), strict=True))
    assert found["computations"] == pytest.approx(math.log1p(computations))


@given(st.text(alphabet=".!? a\n", max_size=60))
def test_sentences_end_with_a_run_of_signs(text: str) -> None:
    found = dict(zip(LENGTH_FEATURES, length_features(text), strict=True))
    assert found["sentences"] == pytest.approx(math.log1p(len(re.findall(r"[.!?]+(?:\s|$)", text))))


@pytest.mark.parametrize("text", ["." * 3_999 + "a", "-1" * 2_000, "- " + "1" * 3_998, "<" * 4_000, "a" * 4_000])
def test_no_prompt_takes_long(text: str) -> None:
    """Milliseconds; what grows with the square of the length would take half a second."""
    started_s = time.process_time()
    length_features(text)
    assert time.process_time() - started_s < 0.1


def test_what_an_answer_adds_to_its_question_is_counted() -> None:
    found = dict(zip(LENGTH_FEATURES, length_features("Do two and 3 make 5?\nTwo and 3 make 5, not 6."), strict=True))
    assert found["new_beyond_first_line"] == pytest.approx(math.log1p(len({"not"})))
    assert found["new_numbers_beyond_first_line"] == pytest.approx(math.log1p(len({"6"})))
    assert found["first_line_numbers"] == pytest.approx(math.log1p(len({"3", "5"})))
    assert found["number_words"] == pytest.approx(math.log1p(len(["two", "Two"])))


def test_a_single_line_adds_nothing_to_itself() -> None:
    found = dict(zip(LENGTH_FEATURES, length_features("How many are 2 and 2?"), strict=True))
    assert found["new_beyond_first_line"] == found["new_numbers_beyond_first_line"] == 0


def test_a_number_of_any_length_is_finite() -> None:
    assert all(map(math.isfinite, length_features("9" * 3_000)))


def test_weights_have_length_1_and_rare_terms_weigh_more() -> None:
    features = TextFeatures().fit(["common rare", "common", "common other"])
    row = features.transform(["common rare"])[0, len(LENGTH_FEATURES) :]
    assert_allclose(row @ row, 1)
    weight = dict(zip(features.terms_, row, strict=True))
    assert weight["rare"] > weight["common"] > weight["other"] == 0


def test_length_features_are_standardized_and_clipped() -> None:
    features = TextFeatures().fit(["a b", "a b c d", "a b c d e f g h"])
    assert_allclose(features.transform(["a b", "a b c d", "a b c d e f g h"])[:, 1].mean(), 0, atol=1e-12)
    far = features.transform(["w " * 1000])
    assert np.abs(far[:, : len(LENGTH_FEATURES)]).max() == CLIP


def test_the_vocabulary_is_bounded_and_keeps_the_most_common() -> None:
    texts = [f"shared word{'x' * number}" for number in range(50)]
    features = TextFeatures(max_terms=3).fit(texts)
    assert len(features.terms_) == 3
    assert "shared" in features.terms_


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    features = TextFeatures().fit(["one two", "two three"])
    together = features.transform(["two", "unknown", "one one"])
    assert_allclose(together[2], features.transform(["one one"])[0])


def test_no_texts_are_refused() -> None:
    with pytest.raises(ValueError, match="no texts"):
        TextFeatures().fit([])


def test_what_was_learnt_survives_its_state() -> None:
    features = TextFeatures().fit(["one two", "two three?"])
    again = TextFeatures.from_state(*features.state())
    assert_allclose(again.transform(ODD_TEXTS), features.transform(ODD_TEXTS), rtol=0, atol=0)


def test_a_state_with_a_missing_number_is_refused() -> None:
    document, arrays = TextFeatures().fit(["one two"]).state()
    with pytest.raises(ValueError, match="shapes"):
        TextFeatures.from_state(document, arrays | {"idf": arrays["idf"][1:]})
