"""The embedded engine's server: continuous batching over any causal language model of transformers.

Run as ``python -m pytest_areal_eval.engines.hf_server --model PATH --port P``.  It speaks SGLang's ``/generate`` and
OpenAI's chat and completions.  Invariant: what a request gets depends on its own prompt, settings and seed, never on
the requests that share its batch.
"""
