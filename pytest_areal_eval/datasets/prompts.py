"""From a record to what a workflow needs: its chat messages and its answer.

Invariant: every record is checked and every prompt is built once, before anything runs; an error names the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pytest_areal_eval.api import is_message
from pytest_areal_eval.datasets.base import LoadedDataset, MadeRecords, Record, near
from pytest_areal_eval.errors import DatasetError

Messages = list[dict[str, Any]]
Prompt = str | Callable[[Record], str | Sequence[Mapping[str, Any]]]
Answer = str | Callable[[Record], Any]

PROMPT_COLUMNS = ("prompt", "question", "problem", "instruction", "input")


def messages_of(record: Record, prompt: Prompt | None) -> Messages:
    """The chat messages of a record.

    Args:
        record: the row.
        prompt: a column's name or a function of the record, either giving text (which becomes one user message) or a
            list of messages.  None takes ``messages``, else the first of ``prompt``, ``question``, ``problem``,
            ``instruction`` and ``input`` that is there.

    Raises:
        DatasetError: the column is missing, or the value is neither text nor a list of messages.
    """
    if callable(prompt):
        return _as_messages(prompt(record), f"the prompt of {_name(prompt)}()")
    column = prompt or next((c for c in ("messages", *PROMPT_COLUMNS) if record.get(c) is not None), None)
    if column is None:
        raise DatasetError(
            f"no prompt: none of messages, {', '.join(PROMPT_COLUMNS)} is there; the fields are: {_fields(record)}",
            'Name the column that holds it: @evaluation(prompt="...").',
        )
    return _as_messages(_column(record, column, "prompt"), f"the field {column!r}")


def require_columns(dataset: LoadedDataset, columns: Mapping[str, str]) -> None:
    """Check that every record has the named columns and that none of them is None.

    Args:
        dataset: what to check.
        columns: from what a column is for to its name: ``{"prompt": "question"}``.

    Raises:
        DatasetError: names the row, the missing field, what it is for, and the fields that the row has.
    """
    for index, record in enumerate(dataset.scan()):
        for purpose, column in columns.items():
            if record.get(column) is None:
                with _at(dataset, index, record):
                    _column(record, column, purpose)


def prepare(dataset: LoadedDataset, *, prompt: Prompt | None = None, answer: Answer | None = None) -> LoadedDataset:
    """The dataset with ``messages`` and ``answer`` added to every record; its other columns stay.

    Args:
        dataset: what to prepare; returned as it is where every record has both and neither argument is given.
        prompt: see :func:`messages_of`.
        answer: a column's name or a function of the record; None leaves the ``answer`` that is there, if any.

    Raises:
        DatasetError: a column is missing, or a function raised; names the row.
    """
    source = dataset.records if callable(prompt) or callable(answer) else dataset.scan()
    added: list[Record] = []
    ready = prompt is None and answer is None
    for index, record in enumerate(source):
        with _at(dataset, index, record):
            new: Record = {"messages": messages_of(record, prompt)}
            if callable(answer):
                new["answer"] = answer(record)
            elif answer is not None:
                new["answer"] = _column(record, answer, "answer")
            added.append(new)
            ready = ready and isinstance(record.get("messages"), list) and record.get("answer") is not None
    return dataset if ready else replace(dataset, records=_Prepared(dataset, added))


class _Prepared(MadeRecords):
    """The records of a dataset, each with some fields added; the original ones are neither copied nor changed."""

    def __init__(self, dataset: LoadedDataset, added: Sequence[Record]) -> None:
        self._dataset = dataset
        self._added = added

    def __len__(self) -> int:
        return len(self._added)

    def made(self, index: int) -> Record:
        """A record with what was added to it."""
        return {**self._dataset.records[index], **self._added[index]}

    def undecoded(self) -> Iterator[Record]:
        """Every record once, images and audio left encoded."""
        for record, new in zip(self._dataset.scan(), self._added, strict=True):
            yield {**record, **new}


@contextmanager
def _at(dataset: LoadedDataset, index: int, record: Record) -> Iterator[None]:
    """Puts the row in front of an error that its record causes."""
    try:
        yield
    except (Exception, SystemExit) as error:  # a prompt or answer function may raise anything
        row = dataset.where(index) + (f" (id {record['id']!r})" if record.get("id") is not None else "")
        if isinstance(error, DatasetError):
            raise DatasetError(f"{row}: {error.args[0]}", error.hint) from error
        raise DatasetError(
            f"{row}: the prompt or answer function raised {type(error).__name__}: {error}",
            f"The row's fields are: {_fields(record)}.",
        ) from error


def _column(record: Record, column: str, purpose: str) -> Any:
    value = record.get(column)
    if value is not None:
        return value
    state = f"the field {column!r} is null" if column in record else f"there is no field {column!r}"
    guess = near(column, (key for key in record if key != column))
    raise DatasetError(
        f"{state}, which is the {purpose}; the fields are: {_fields(record)}",
        f"Did you mean {guess!r}?" if guess else f'Name another column: @evaluation({purpose}="...").',
    )


def _as_messages(value: object, what: str) -> Messages:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, Sequence) or isinstance(value, bytes) or not value:
        raise DatasetError(
            f"{what} is neither text nor a list of messages but {_short(value)}",
            'Give text, or [{"role": "user", "content": "..."}].',
        )
    for message in value:
        if not is_message(message):
            raise DatasetError(
                f"{what} holds {_short(message)}, which is no message", 'A message is {"role": ..., "content": ...}.'
            )
    return [dict(message) for message in value]


def _fields(record: Record) -> str:
    return ", ".join(record) or "none"


def _name(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
