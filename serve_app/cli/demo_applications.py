"""The applications of `justitia demo`: eight runs of seven types of agent, small enough for two slow cores.

Sized for SmolLM2-135M: prompts of at most 350 tokens, 24 to 120 output tokens a call, about 2,000 in all. They
are of very different cost on purpose: a run of one short question is in the queue beside a summary of four parts,
which is where the order matters. All texts are written for this project.
"""

from __future__ import annotations

from typing import Any

Call = dict[str, Any]
Document = dict[str, Any]

REPORT = (
    "The town of Harrow Bay has run a ferry to the island of Tern since 1911. The boat that does the work today, "
    "the Clementine, was built for sixty passengers and carries about ninety thousand a year. Last winter she was "
    "out of service for twenty-three days: eleven for storms, and twelve because a pump had to be ordered from "
    "abroad. On those days the islanders paid fishermen for the crossing, and the school sent its work by post.",
    "The council looked at three ways forward. A second-hand boat from the north coast costs 1.4 million and could "
    "sail within a year, but burns a third more fuel. A battery ferry costs 3.9 million, needs a charging station "
    "on each shore, and would cut the cost of running by half. The third way is to repair the Clementine again, "
    "for 600,000, and to decide in five years.",
    "Islanders were asked for their view in March. Of 412 answers, 268 were for the battery ferry, 91 for repairs "
    "and 53 for the second-hand boat. Shopkeepers named reliability first, families named the evening sailing, "
    "which has been cut since 2019. Several people said that they would pay a higher fare if the last boat left "
    "at nine instead of six.",
    "The harbour engineer warns that the pier on Tern is the weak point. Its piles date from 1954, and the survey "
    "of last summer gave them eight years at most. A heavier boat would shorten that. Strengthening the pier "
    "costs 700,000 whichever boat is chosen, and half of it could come from the national coast fund if the "
    "application is sent before the end of October.",
)

REVIEWS = (
    "The lamp is bright and the light is warm. I read by it each night and my eyes no longer hurt. The switch is "
    "at the back, though, and I have to feel for it in the dark.",
    "Arrived with a dent in the foot, but the shop sent another one within two days. It stands firmly and the arm "
    "stays where I put it. The cable could be longer.",
    "For this price I expected metal. The joint is plastic and creaks when the arm moves. The light itself is "
    "good, and it uses little power.",
)

CLAIMS = (
    "Water boils at a lower temperature on a high mountain than at sea level.",
    "The Moon gives off its own light.",
    "Whales are mammals and breathe air.",
)

BUGGY_CODE = """def average(numbers):
    total = 0
    for number in numbers:
        total = number
    return total / len(numbers)"""

MEETING_NOTES = (
    "Notes by Ada: The launch moves from the 3rd to the 10th of May. Ben writes the guide. Cleo asks the printers "
    "for a price. We have not decided about the video.",
    "Notes by Ben: Launch on 10 May. I write the guide until the 28th of April. Cleo gets three prices for the "
    "printing. The video is dropped, it costs too much.",
)


def demo_applications() -> list[Document]:
    """Documents for `POST /v1/applications`, in the order in which the demo sends them. Fresh at each call."""
    return [
        map_reduce_summarization(),
        self_consistency(),
        fact_verification(),
        plan_and_execute(),
        document_merging(),
        code_checking(),
        short_question(),
        review_summarization(),
    ]


def map_reduce_summarization() -> Document:
    """The elephant: four parts of a report are summarized side by side, then the summaries are."""
    maps = [
        _chat(f"map{number}", f"Summarize this part of a report in two sentences.\n\n{part}", 75)
        for number, part in enumerate(REPORT, start=1)
    ]
    names = [call["name"] for call in maps]
    notes = "\n\n".join(f"{{{{{name}}}}}" for name in names)
    question = f"Here are notes on a report about a ferry.\n\n{notes}\n\nWrite a summary of three sentences."
    reduce = _chat("reduce", question, 120, after=names)
    return _application("map_reduce_summarization", [*maps, reduce])


def self_consistency() -> Document:
    """One question is answered five times with some chance, then the answers are compared."""
    question = (
        "A baker has 3 trays with 12 rolls each. She sells 20 rolls in the morning and bakes 8 more at noon. "
        "How many rolls has she then? Think step by step, and end with the number."
    )
    think = _chat("think", question, 60, n=5, temperature=0.8, seed=11)
    vote_prompt = (
        "Five students answered the same question.\n\n{{think}}\n\n"
        "Which number do most of them end with? Answer with the number."
    )
    return _application("self_consistency", [think, _chat("vote", vote_prompt, 24, ["think"])])


def fact_verification() -> Document:
    """Three claims are checked side by side, then a verdict is given on all of them."""
    checks = [
        _chat(f"check{number}", f"Is this claim true or false? Give one reason.\n\nClaim: {claim}", 50)
        for number, claim in enumerate(CLAIMS, start=1)
    ]
    names = [call["name"] for call in checks]
    findings = "\n\n".join(
        f"Claim: {claim}\nFinding: {{{{{name}}}}}" for claim, name in zip(CLAIMS, names, strict=True)
    )
    verdict = _chat("verdict", f"{findings}\n\nSay which of these claims are false.", 60, after=names)
    return _application("fact_verification", [*checks, verdict])


def plan_and_execute() -> Document:
    """A plan, three steps that each use the plan and the step before, and an answer."""
    goal = "A school class of 20 children wants to spend one day at the beach and collect litter."
    plan = _chat("plan", f"{goal}\nWrite a plan of three short steps.", 80)
    topics = ("what to bring", "how to sort what is found", "how to stay safe near the water")
    steps = []
    previous = "plan"
    for number, topic in enumerate(topics, start=1):
        known = {previous: f"So far: {{{{{previous}}}}}", "plan": "Plan: {{plan}}"}
        prompt = f"{goal}\n" + "\n".join(known.values()) + f"\n\nExplain {topic} in two sentences."
        steps.append(_chat(f"step{number}", prompt, 60, after=list(known)))
        previous = f"step{number}"
    answer_prompt = (
        "{{step1}}\n\n{{step2}}\n\n{{step3}}\n\nWrite a short letter to the parents about the day at the beach."
    )
    answer = _chat("answer", answer_prompt, 100, after=["step1", "step2", "step3"])
    return _application("plan_and_execute", [plan, *steps, answer])


def document_merging() -> Document:
    """Two people's notes of one meeting are merged in two ways, and the better one is chosen."""
    notes = "\n\n".join(MEETING_NOTES)
    facts = _chat("merge1", f"{notes}\n\nMerge these notes into one list of decisions.", 90)
    tasks = _chat("merge2", f"{notes}\n\nMerge these notes into a list of who does what.", 90)
    final_prompt = "Decisions:\n{{merge1}}\n\nTasks:\n{{merge2}}\n\nWrite the final minutes of the meeting."
    final = _chat("minutes", final_prompt, 110, after=["merge1", "merge2"])
    return _application("document_merging", [facts, tasks, final])


def code_checking() -> Document:
    """A function is explained, its mistake is looked for, and a correction is written."""
    explain = _chat("explain", f"What should this Python function do?\n\n{BUGGY_CODE}", 50)
    find_prompt = f"{BUGGY_CODE}\n\nIts purpose: {{{{explain}}}}\n\nThere is one mistake in the loop. Which?"
    find = _chat("find", find_prompt, 60, after=["explain"])
    fix_prompt = f"{BUGGY_CODE}\n\nThe mistake: {{{{find}}}}\n\nWrite the corrected function."
    return _application("code_checking", [explain, find, _chat("fix", fix_prompt, 90, after=["find"])])


def short_question() -> Document:
    """The mouse: a single short call, which should not wait behind the elephant."""
    question = "Name one animal that sleeps through the winter, and say why it does."
    return _application("question_answering", [_chat("answer", question, 40)])


def review_summarization() -> Document:
    """A second, smaller map-reduce: predictions of its type help it."""
    maps = [
        _chat(f"map{number}", f"What does this buyer like, and what not?\n\n{review}", 45)
        for number, review in enumerate(REVIEWS, start=1)
    ]
    names = [call["name"] for call in maps]
    notes = "\n".join(f"- {{{{{name}}}}}" for name in names)
    reduce = _chat("reduce", f"Opinions about a lamp:\n{notes}\n\nSum them up in one sentence.", 50, after=names)
    return _application("map_reduce_summarization", [*maps, reduce])


def _application(application_type: str, calls: list[Call]) -> Document:
    """Without an id, so that the demo can run again on a service that remembers its last run."""
    return {"application_type": application_type, "calls": calls}


def _chat(name: str, prompt: str, max_tokens: int, after: list[str] | None = None, **sampling: Any) -> Call:
    """A call of one user message; deterministic unless `sampling` says otherwise."""
    messages = [{"role": "user", "content": prompt}]
    fields = {"temperature": 0.0, **sampling}
    return {"name": name, "after": after or [], "messages": messages, "max_tokens": max_tokens, **fields}
