"""Report items in the order in which they complete, within one evaluation's block.

A block is what stands together of one group.  A starter test, never reported, sets up what the group's rollouts need;
then every item goes through pytest's own protocol as soon as its rollout is done.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_areal_eval.collection.groups import Group, iter_blocks, membership
from pytest_areal_eval.collection.parametrize import MODEL
from pytest_areal_eval.errors import ArealEvalError, UserError
from pytest_areal_eval.session.session import EvaluationSession
from pytest_areal_eval.session.termination import held

if TYPE_CHECKING:
    from pytest_areal_eval.report.live import LiveLine


_STARTER = pytest.StashKey[bool]()


class CompletionOrder:
    """The run loop.

    Args:
        session: pytest's session.
        evaluations: ours.
        live: the line that shows what is awaited.
        idle: called once, as soon as rollouts are in flight and there is nothing to report.
    """

    def __init__(
        self,
        session: pytest.Session,
        evaluations: EvaluationSession,
        live: LiveLine,
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        self.session = session
        self.evaluations = evaluations
        self.live = live
        self._idle: Callable[[], None] | None = idle

    def run(self) -> None:
        """Run every collected test.

        Raises:
            pytest.Session.Failed: ``--maxfail`` is reached.
            pytest.Session.Interrupted: somebody asked to stop.
            pytest.UsageError: an option cannot work.
        """
        blocks = list(iter_blocks(list(self.session.items)))
        for number, block in enumerate(blocks):
            after = blocks[number + 1][0] if number + 1 < len(blocks) else None
            found = membership(block[0])
            if found is not None and self._start(found[0], block[0]):
                with self.evaluations.inbox.keeping_up():
                    self._in_completion_order(found[0], block, after)
            else:
                self._in_order(block, after)

    def _start(self, group: Group, first: pytest.Item) -> bool:
        """Hand the group to its controller; False if its fixtures fail or skip, which each test then says itself."""
        if group.started:
            return True
        assert isinstance(first, pytest.Function)
        arguments = self._shared_fixtures(group, first)
        if arguments is None or arguments.get("controller") is None:
            return False
        controller = arguments.pop("controller")
        try:
            with self.live.waiting(controller):
                self.evaluations.wait_ready(controller, self.live.tick)
            self.evaluations.begin(group, controller, arguments)
        except UserError as error:
            raise pytest.UsageError(str(error)) from error
        except ArealEvalError as error:
            self._stop_for_engine(error)
        return True

    def _shared_fixtures(self, group: Group, first: pytest.Function) -> dict[str, Any] | None:
        """Set up what the group's rollouts need, through a starter test beside its first one.

        The starter is a test like any other to pytest's hooks, so fixtures are made, ordered and kept as always; it is
        torn down with ``first`` as the next test, which leaves module, class and session fixtures standing.
        """
        starter = _starter(group, first)
        hook = first.ihook
        setup = pytest.CallInfo.from_call(
            lambda: hook.pytest_runtest_setup(item=starter), "setup", reraise=(KeyboardInterrupt, pytest.exit.Exception)
        )
        arguments = dict(starter.funcargs) if setup.excinfo is None else None
        pytest.CallInfo.from_call(
            lambda: hook.pytest_runtest_teardown(item=starter, nextitem=first),
            "teardown",
            reraise=(KeyboardInterrupt, pytest.exit.Exception),
        )
        failure = setup.excinfo.value if setup.excinfo is not None else None
        if isinstance(failure, UserError):
            raise pytest.UsageError(str(failure)) from failure
        if isinstance(failure, ArealEvalError):  # of a conftest's own controller, which each test would say again
            self._stop_for_engine(failure)
        return arguments

    def _in_completion_order(self, group: Group, block: Sequence[pytest.Item], after: pytest.Item | None) -> None:
        left = dict.fromkeys(block)
        rest = iter(block)  # any test of the group will do as "next": it only steers what is torn down
        following = next(rest)
        while left:
            with self.live.running(group):
                item = self.evaluations.inbox.next_completed(group, left.keys(), self._tick)
            del left[item]
            while following not in left and left:
                following = next(rest)
            self._run_one(item, following if left else after)

    def _tick(self) -> None:
        idle, self._idle = self._idle, None
        if idle is not None:
            idle()
        self.live.tick()

    def _in_order(self, block: Sequence[pytest.Item], after: pytest.Item | None) -> None:
        for item, following in zip(block, [*block[1:], after], strict=True):
            self._run_one(item, following)

    def _run_one(self, item: pytest.Item, following: pytest.Item | None) -> None:
        failure = self.evaluations.engine_failure()
        if failure is not None and self.evaluations.was_lost(item):
            self._stop_for_engine(failure)
        with held():
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if self.session.shouldfail:
            raise self.session.Failed(self.session.shouldfail)
        if self.session.shouldstop:
            raise self.session.Interrupted(self.session.shouldstop)

    def _stop_for_engine(self, error: ArealEvalError) -> None:
        self.evaluations.engine_error = error
        self.session.shouldstop = f"areal-eval: {type(error).__name__}"
        raise self.session.Interrupted(self.session.shouldstop)


def completion_order_is_possible(session: pytest.Session, wanted: str) -> bool:
    """Whether this loop may replace pytest's: not with xdist workers, ``--stepwise``, ``--pdb`` or a foreign loop."""
    config = session.config
    if wanted == "collection" or config.option.collectonly or config.option.setuponly:
        return False
    if hasattr(config, "workerinput") or config.pluginmanager.hasplugin("dsession"):
        return False
    if getattr(config.option, "stepwise", False) or getattr(config.option, "usepdb", False):
        return False
    return not _foreign_loops(config) and any(membership(item) for item in session.items)


def _foreign_loops(config: pytest.Config) -> list[str]:
    """Plugins other than pytest and ours that implement the loop themselves."""
    impls = config.hook.pytest_runtestloop.get_hookimpls()
    plain = [impl for impl in impls if not (impl.wrapper or impl.hookwrapper)]
    return [i.plugin_name for i in plain if not i.function.__module__.startswith(("_pytest.", "pytest_areal_eval."))]


def _starter(group: Group, first: pytest.Function) -> pytest.Function:
    """A test beside ``first``, with its marks and parameters, that asks for the controller and the shared fixtures."""
    own = ["self"] if first.cls is not None else []
    names = [*own, "controller", *group.extra_arguments]

    def areal_eval_starter(*args: Any) -> None:
        """Never called."""

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    function: Any = areal_eval_starter
    function.__signature__ = inspect.Signature(parameters)
    function.pytestmark = [mark for mark in first.own_markers if mark.name != "parametrize"]
    starter = pytest.Function.from_parent(
        first.parent, name="areal-eval-starter", callspec=first.callspec, callobj=function
    )
    assert isinstance(starter, pytest.Function)
    starter.stash[_STARTER] = True
    return starter


def leave_out(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> object | None:
    """A starter needs no function-scoped fixture: it gets a placeholder, so that each is made for the tests alone.

    Nor does a session that generates nothing need the ``controller`` fixture, whoever wrote it.
    """
    if fixturedef.argname == "controller" and not request.config.option.setuponly:
        return _without_engine(fixturedef, request)
    if fixturedef.scope != "function" or not request.node.stash.get(_STARTER, False):
        return None
    placeholder = object()
    fixturedef.cached_result = (placeholder, getattr(request, "param", None), None)
    return placeholder


def _without_engine(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> object | None:
    from pytest_areal_eval.plugin import RUN
    from pytest_areal_eval.session.wiring import without_engine

    run = request.config.stash[RUN]
    if run.evaluations.history is None:
        return None
    made = without_engine(run, request.getfixturevalue(MODEL))
    if made is not None:
        fixturedef.addfinalizer(made.destroy)
        fixturedef.cached_result = (made, getattr(request, "param", None), None)
    return made
