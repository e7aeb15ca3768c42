"""What ``run.json`` says of a session and of each of its evaluations, so that another day can tell what was run."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.collection.resolution import samples_of, sampling_of
from pytest_areal_eval.journal import SCHEMA, command_line, dataset_identity, git_state, machine, versions
from pytest_areal_eval.runs.identity import identity_of
from pytest_areal_eval.workflows.base import describe_workflow

if TYPE_CHECKING:
    import pytest

    from pytest_areal_eval.collection.groups import Group
    from pytest_areal_eval.options.settings import Settings


def describe_session(config: pytest.Config, settings: Settings, started_at: float) -> dict[str, Any]:
    """How it was started, from which code, on which machine."""
    return {
        "schema": SCHEMA,
        "status": "started",
        "started_at": started_at,
        "command_line": command_line(["pytest", *config.invocation_params.args]),
        "settings": {"given": dict(settings.given), "ini": dict(settings.ini), "yaml": dict(settings.yaml)},
        "git": git_state(config.rootpath),
        "versions": versions(),
        "machine": machine(),
        "models": {},
    }


def describe_group(group: Group, settings: Settings) -> dict[str, Any]:
    """An evaluation's data, sampling, workflow and reward."""
    spec, function = group.plan.spec, group.plan.function
    own = f"{function.__module__}.{function.__qualname__}"
    return {
        "node": group.key,
        "evaluation": group.evaluation,
        "model": group.model,
        "model_name": group.model_name,
        "dataset": dataset_identity(group.plan.data),
        "n_selected": len(group.items),
        "n_planned": len(group.plan.selected),
        "n_total": len(group.plan.ids),
        "n_samples": samples_of(group, settings),
        "sampling": dataclasses.asdict(sampling_of(group, settings)),
        "workflow": own if group.plan.is_async else describe_workflow(spec.workflow or "RLVRWorkflow"),
        "reward_fn": None if spec.reward_fn is None else describe_workflow(spec.reward_fn),
        "template": {**spec.template_kwargs, "enable_thinking": spec.enable_thinking},
        "pass_mark": spec.pass_mark,
        "strict": group.plan.strict,
        "identity": identity_of(group, settings),
    }
