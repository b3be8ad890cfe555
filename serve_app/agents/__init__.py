"""Nine applications as programs on the public client: each does one job on real text.

`serve_app.agents.NAME` has `run(client, text)`, which gives a `Result`, and is a program of its own:
`python -m serve_app.agents.NAME [FILE or text] --trace`. Those whose calls are known at arrival are submitted whole
(map-reduce summarization, document merging, self-consistency); the others are open applications. Laws. An agent ends
with any model: what cannot be read is UNCLEAR, loops and fan-outs are bounded. One that is cancelled cancels its
application.
"""

AGENTS = (
    "map_reduce_summarization",
    "document_merging",
    "fact_verification",
    "self_consistency",
    "plan_and_execute",
    "code_checking",
    "knowledge_base_qa",
    "equation_verification",
    "household_task",
)
