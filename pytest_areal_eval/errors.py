"""Every error that the library raises on purpose: what happened, to what, and what to type next."""

from __future__ import annotations


class ArealEvalError(Exception):
    """Base of the library's own errors.  ``hint`` says what to do next; it is shown on a line of its own."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.args[0]}\n{self.hint}" if self.hint else str(self.args[0])


class UserError(ArealEvalError):
    """Something that the user typed cannot work: the plugin turns it into a usage or a collection error."""


class DatasetError(UserError):
    """A dataset cannot be read, or a record lacks what the evaluation needs."""


class CheckpointError(UserError):
    """A checkpoint, its tokenizer or its chat template is missing or unreadable."""


class ConfigError(UserError):
    """An option, an ini key or a decorator's argument is wrong."""


class SchedulerError(ArealEvalError):
    """A scheduler could not do what was asked."""


class CannotFit(SchedulerError, UserError):
    """The request can never be met here; raised before anything is started."""


class EngineStartError(ArealEvalError):
    """No replica became ready.  The message carries the command, the exit code and the end of the server's log."""


class EngineLost(ArealEvalError):
    """Every replica is gone and the restart budget is spent.  What had finished is kept."""


class RequestError(ArealEvalError):
    """A request failed for good: a permanent HTTP status, or retries are spent.

    Args:
        message: what the server said, with the endpoint and the number of attempts.
        status: the HTTP status, or None where no answer came.
    """

    def __init__(self, message: str, *, status: int | None = None, hint: str = "") -> None:
        super().__init__(message, hint)
        self.status = status


class PromptError(ArealEvalError):
    """A chat template refuses a conversation, or fails over it; nothing was sent."""


class PromptTooLong(ArealEvalError):
    """Prompt and answer cannot fit the model's context; known before any request is made."""


class GraderTimeout(ArealEvalError):
    """A reward function did not return within its limit; its process was killed."""


class GraderError(ArealEvalError):
    """A reward function raised, died, or returned something that is no reward.

    Args:
        message: what happened, with the item and the function.
        hint: what to do next.
        traceback: the user's frames where it raised.
    """

    def __init__(self, message: str, hint: str = "", *, traceback: str = "") -> None:
        super().__init__(message, hint)
        self.traceback = traceback


class AgentError(ArealEvalError):
    """An agent raised, or its process ended.

    Args:
        message: the exception's text, or how the process ended.
        hint: what to do next.
        traceback: the user's frames where it raised.
    """

    def __init__(self, message: str, hint: str = "", *, traceback: str = "") -> None:
        super().__init__(message, hint)
        self.traceback = traceback


class JournalError(ArealEvalError):
    """The results folder cannot be written or a journal cannot be read."""
