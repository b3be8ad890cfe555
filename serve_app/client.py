"""The client: `AsyncJustitia`, and `Justitia` for programs that are not asynchronous.

    async with AsyncJustitia() as client, client.application("fact_verification") as app:
        claims = await app.chat("Which claims does this text make? ...", stage="claims")
        verdict = await app.chat(f"Is this true? {claims.text}", stage="verdict", after=[claims])

Transport and retries: `serve_app.client_transport`; open applications: `serve_app.client_application`.
"""

from serve_app.client_answers import Answer, CallTrace
from serve_app.client_application import AsyncApplication
from serve_app.client_async import DEFAULT_URL, AsyncJustitia, AsyncSubmitted
from serve_app.client_errors import JustitiaError, JustitiaUnreachable
from serve_app.client_sync import Application, Justitia, Submitted

__all__ = [
    "DEFAULT_URL",
    "Answer",
    "Application",
    "AsyncApplication",
    "AsyncJustitia",
    "AsyncSubmitted",
    "CallTrace",
    "Justitia",
    "JustitiaError",
    "JustitiaUnreachable",
    "Submitted",
]
