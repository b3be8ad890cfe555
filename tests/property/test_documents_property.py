"""Random call graphs against reachability, random texts against the prompt written out by hand."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from serve_app.documents import ApplicationDocument, parse_application
from serve_app.errors import ApiError


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    size = draw(st.integers(1, 8))
    names = [f"call{i}" for i in range(size)]
    return {name: draw(st.lists(st.sampled_from(names), unique=True, max_size=4)) for name in names}


def reachable(graph: dict[str, list[str]], start: str) -> set[str]:
    """Everything `start` waits for, by repeated squaring of the relation rather than by any ordering."""
    found = set(graph[start])
    for _ in graph:
        found |= {further for name in found for further in graph[name]}
    return found


def attempt(graph: dict[str, list[str]]) -> ApplicationDocument | ApiError:
    calls = [{"name": name, "after": after, "prompt": f"This is {name}."} for name, after in graph.items()]
    try:
        return parse_application({"calls": calls})
    except ApiError as error:
        return error


@given(graphs())
def test_a_document_is_accepted_exactly_when_no_call_waits_for_itself(graph: dict[str, list[str]]) -> None:
    cyclic = any(name in reachable(graph, name) for name in graph)
    accepted = attempt(graph)
    if isinstance(accepted, ApiError):
        assert cyclic, accepted.message
        assert accepted.status == 400
        return
    assert not cyclic
    order = accepted.order()
    assert sorted(order) == sorted(graph)
    assert all(order.index(needed) < order.index(name) for name, after in graph.items() for needed in after)


@given(graphs())
def test_the_cycle_that_is_named_is_a_cycle(graph: dict[str, list[str]]) -> None:
    graph = {name: [needed for needed in after if needed != name] for name, after in graph.items()}
    accepted = attempt(graph)
    if isinstance(accepted, ApiError):
        cycle = accepted.message.rsplit(": ", 1)[1].split(" → ")
        assert cycle[0] == cycle[-1]
        assert all(needed in graph[name] for name, needed in pairwise(cycle))


texts = st.text(alphabet="ab{} \n\\1é", max_size=20)
outputs = st.one_of(texts, st.sampled_from(["{{a}}", "{{b}}", "x{{a}}{{b}}y", "\\g<0>", "}}{{a}}{{"]))


@given(st.lists(texts, min_size=3, max_size=3), outputs, outputs)
def test_substitution_is_a_single_pass(parts: list[str], a: str, b: str) -> None:
    parts = [part.replace("{", "(").replace("}", ")") for part in parts]
    template = f"prompt:{parts[0]}{{{{a}}}}{parts[1]}{{{{b}}}}{parts[2]}"
    accepted = parse_application(
        {
            "calls": [
                {"name": "a", "prompt": "x"},
                {"name": "b", "prompt": "x"},
                {"name": "c", "after": ["a", "b"], "prompt": template},
            ]
        }
    )
    rendered = accepted.render("c", {"a": [a], "b": [b]})["prompt"]
    assert rendered == "prompt:" + parts[0] + a + parts[1] + b + parts[2]
