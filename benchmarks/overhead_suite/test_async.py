"""A test that is its own workflow; the rows come with ``--dataset test_async=FILE``."""

from pytest_areal_eval import evaluation


@evaluation(dataset=[])
async def test_async(item, engine):
    """Ask and grade here."""
    reply = await engine.chat([{"role": "user", "content": item["question"]}])
    return float(item["answer"] in reply.text)
