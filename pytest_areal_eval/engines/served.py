"""Which models an endpoint serves, and which of them is meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_areal_eval.engines.base import Endpoint, TransientError
from pytest_areal_eval.engines.http import MALFORMED, get_json, openai_path, unexpected
from pytest_areal_eval.errors import RequestError

if TYPE_CHECKING:
    import aiohttp

UNLISTED = "Check the address; if it is right, give --model=NAME, as the endpoint calls it."
NO_SUCH_PAGE = frozenset({404, 405, 501})


def choose_model(models: Sequence[Mapping[str, Any]] | None, wanted: str | None, where: str) -> Mapping[str, Any]:
    """The served model that ``--model`` means: by its name, or by the folder that the server loaded.

    Raises:
        RequestError: none is; says which there are.
    """
    if models is None:
        if wanted is None or Path(wanted).is_dir():
            raise RequestError(f"{where} does not list its models", hint=UNLISTED)
        return {"id": wanted}
    if wanted is None:
        if len(models) == 1:
            return models[0]
        raise RequestError(f"{where} serves {len(models)} models{_names(models)}", hint="Give --model=NAME.")
    folder = Path(wanted).expanduser().resolve()
    same = [m for m in models if m["id"] == wanted]
    if not same and folder.is_dir():
        same = [m for m in models if _is_of(folder, m["id"]) or _is_of(folder, m.get("root"))]
    if not same:
        raise RequestError(f"{where} does not serve {wanted!r}; it serves{_names(models)}", hint="Give --model=NAME.")
    return same[0]


def _is_of(folder: Path, said: Any) -> bool:
    """Whether a server's path is that folder's; a relative one begins where the server was started."""
    path = Path(said) if isinstance(said, str) else Path()
    if path.is_absolute():
        return path.resolve() == folder
    return bool(path.parts) and folder.parts[-len(path.parts) :] == path.parts


def _names(models: Sequence[Mapping[str, Any]]) -> str:
    shown = [f"{m['id']} (from {m['root']})" if m.get("root") not in (None, m["id"]) else str(m["id"]) for m in models]
    return f": {', '.join(shown[:8]) or 'none'}{', …' if len(shown) > 8 else ''}"


async def list_models(endpoint: Endpoint, http: aiohttp.ClientSession) -> list[Mapping[str, Any]] | None:
    """The models that ``/v1/models`` lists; None where there is no such page."""
    path = openai_path(endpoint, "/models")
    try:
        body = await get_json(http, endpoint, path)
    except RequestError as error:
        if error.status in NO_SUCH_PAGE:
            return None
        raise
    try:
        return [dict(model, id=str(model["id"])) for model in body["data"]]
    except MALFORMED as error:
        raise unexpected(f"{endpoint.name} GET {path}", body, error) from error


async def with_folder(
    models: Sequence[Mapping[str, Any]], endpoint: Endpoint, http: aiohttp.ClientSession
) -> Sequence[Mapping[str, Any]]:
    """SGLang lists its model under the served name alone, and tells the folder elsewhere."""
    unsaid = [m for m in models if m.get("owned_by") == "sglang" and m.get("root") in (None, m["id"])]
    if not unsaid:
        return models
    try:
        folder = (await get_json(http, endpoint, "/model_info"))["model_path"]
    except (TransientError, RequestError, *MALFORMED):
        return models
    return [dict(m, root=folder) if m in unsaid and not m.get("parent") else m for m in models]
