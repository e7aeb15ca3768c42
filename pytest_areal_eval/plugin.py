"""pytest's hooks; each only forwards.  Loading this module imports nothing heavy and an idle session pays nothing.

The story of a session: ``parametrize`` makes the tests, ``session`` hands them to a controller, ``runloop`` reports
them as they complete, ``outcomes`` says what each is, ``conclusion`` adds up, decides the gates and prints.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_areal_eval.options.settings import (
    Settings,
    add_options,
    read_settings,
    translate_short_spellings,
    values_apart,
)
from pytest_areal_eval.session.fixtures import areal_kept, areal_model, controller, engine, item, rollout, scheduler

if TYPE_CHECKING:
    from pytest_areal_eval.runs.run import Run as Run
    from pytest_areal_eval.session.conclusion import Conclusion

__all__ = ["areal_kept", "areal_model", "controller", "engine", "item", "rollout", "scheduler"]
"""The fixtures, which pytest finds here."""

SETTINGS = pytest.StashKey[Settings]()
RUN = pytest.StashKey["Run"]()
CONCLUSION = pytest.StashKey["Conclusion"]()
ACTIVE = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from pytest_areal_eval import hooks

    pluginmanager.add_hookspecs(hooks)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None]:
    if early_config.known_args_namespace.areal_shim or early_config.getini("areal_shim"):
        _install_areal_shim(early_config)
    translated = translate_short_spellings(args, parser)
    if translated is not args:  # "--model DIR": DIR is a value and no place to look for conftests
        early_config.known_args_namespace.file_or_dir = parser.parse_known_args(translated).file_or_dir
    apart = values_apart(args, translated)
    if apart:
        from pytest_areal_eval.options.rootdir import refuse_moved_rootdir

        refuse_moved_rootdir(early_config, apart)
    result = yield
    args[:] = translate_short_spellings(args, parser)  # again: a conftest may have taken a short spelling
    return result


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "evaluation(dataset, *, reward_fn, workflow, gates, ...): evaluate a checkpoint, one test for each item.",
    )
    config.stash[SETTINGS] = read_settings(config)  # here, since a wrong ini value is one usage error and no test's


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    if not config.getoption("areal_show_config", False):
        return None
    from pytest_areal_eval.options.configuration import show

    show(config, read_settings(config))
    return 0


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("evaluation") is not None:
        _session(metafunc.config).planner.parametrize(metafunc)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    result = yield
    if config.stash.get(ACTIVE, False):
        from pytest_areal_eval.session.beginning import regroup

        items[:] = regroup(items)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.stash.get(ACTIVE, False):
        _conclusion(session.config).begin(session)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    if CONCLUSION not in session.config.stash or session.config.option.collectonly:
        return (yield)
    conclusion = session.config.stash[CONCLUSION]
    conclusion.expect_gates(session)
    result = yield
    conclusion.decide(session)
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist's: the controlling process is about to start a worker."""
    from pytest_areal_eval.session.xdist import own_workers

    config = node.config
    _session(config)
    own_workers(config, _conclusion(config)).configure(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any) -> None:
    """xdist's: the controlling process learns that a worker has collected."""
    owner = _conclusion(node.config).owner
    if owner is not None:
        owner.node_collected()


def _install_areal_shim(config: pytest.Config) -> None:
    """Before any conftest is imported, for as long as the configuration lives."""
    from pytest_areal_eval import areal_shim

    if areal_shim.install():
        config.add_cleanup(areal_shim.uninstall)


def _session(config: pytest.Config) -> Any:
    """The session's state, made when the first evaluation is collected."""
    from pytest_areal_eval.session.session import SESSION, EvaluationSession

    if SESSION not in config.stash:
        from pytest_areal_eval.runs.run import Run

        evaluations = EvaluationSession(config, config.stash[SETTINGS])
        config.stash[SESSION] = evaluations
        config.stash[RUN] = run = Run(config, evaluations)
        config.stash[ACTIVE] = True
        config.pluginmanager.register(_Active(config), "areal-eval-active")
        if run.worker is not None:
            config.pluginmanager.register(run.worker, "areal-eval-worker")
    return config.stash[SESSION]


def _conclusion(config: pytest.Config) -> Conclusion:
    from pytest_areal_eval.session.conclusion import Conclusion

    if CONCLUSION not in config.stash:
        config.stash[CONCLUSION] = Conclusion(config, _session(config), config.stash[RUN])
    return config.stash[CONCLUSION]


class _Active:
    """The hooks that only a session with evaluations needs; registered when the first one is collected."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        return _conclusion(session.config).run_loop(session)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        from pytest_areal_eval.session.outcomes import call

        return call(pyfuncitem)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        from pytest_areal_eval.session.outcomes import annotate
        from pytest_areal_eval.session.termination import held

        with held():
            report = yield
            annotate(item, call, report)
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> object | None:
        from pytest_areal_eval.session.runloop import leave_out

        _session(self.config).fixture_scopes[fixturedef.argname] = fixturedef.scope
        return leave_out(fixturedef, request)

    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        from pytest_areal_eval.session.outcomes import word_of

        if isinstance(report, pytest.TestReport) and word_of(report):
            return "missed", "m", ("MISSED", {"yellow": True})
        return None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None]:
        from pytest_areal_eval.session.termination import held

        conclusion = _conclusion(self.config)
        with held():
            if conclusion.run.worker is None:  # a worker sends its reports to the owner, whole
                conclusion.board.receive(report)
            return (yield)

    def pytest_report_collectionfinish(self) -> list[str]:
        return _conclusion(self.config).header()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        _conclusion(self.config).print(terminalreporter)

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        _conclusion(self.config).interrupt(excinfo.value)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        _conclusion(self.config).finish(session)
