"""The endpoint that agents talk to: OpenAI's and Anthropic's APIs over whatever engine the evaluation runs on.

Invariant: it listens on loopback, answers only to the key of an episode that runs now, and makes every request through
that episode's engine, so an agent's calls are balanced, retried, limited and recorded as any workflow's.
"""

from __future__ import annotations

from pytest_areal_eval.proxy.sessions import Proxy, ProxySession

__all__ = ["Proxy", "ProxySession"]
