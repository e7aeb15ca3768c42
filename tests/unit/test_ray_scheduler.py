"""What the Ray scheduler decides without Ray: addresses, runtime environments, what fits, why something waits."""

from __future__ import annotations

import importlib.util
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from support.waiting import until

from pytest_areal_eval.errors import CannotFit, ConfigError, SchedulerError
from pytest_areal_eval.schedulers.base import InstanceSpec, Shape
from pytest_areal_eval.schedulers.ray import address as addresses
from pytest_areal_eval.schedulers.ray.address import check, own_address, read_runtime_env, resolve
from pytest_areal_eval.schedulers.ray.connection import Connection
from pytest_areal_eval.schedulers.ray.fit import bundle_of, check_fits, waiting
from pytest_areal_eval.schedulers.ray.scheduler import RayScheduler


def node(name: str, gpus: float, cpus: float = 8, free: float | None = None, **more: Any) -> dict[str, Any]:
    total = {"GPU": gpus, "CPU": cpus, "memory": 64e9}
    return {
        "name": name,
        "alive": True,
        "total": total,
        "free": {**total, "GPU": gpus if free is None else free},
    } | more


def fits(shape: Shape, *gpus: float, running: int = 0) -> None:
    nodes = [node(f"n{i}", number) for i, number in enumerate(gpus)]
    check_fits(InstanceSpec("m/0", ("x",), shape=shape), bundle_of(shape, "GPU"), nodes, running, "head:6379")


class TestAddress:
    @pytest.mark.parametrize("given", [None, "", "local"])
    def test_without_one_a_cluster_is_started_here(self, given: str | None) -> None:
        assert resolve(given) == "local"

    @pytest.mark.parametrize("given", ["head", "head:", ":6379", "head:gcs", "ray://head:10001", "http://head:8265"])
    def test_a_malformed_one_is_refused(self, given: str) -> None:
        with pytest.raises(ConfigError, match=f"--ray-address={given}: not an address of a Ray cluster"):
            resolve(given)

    def test_a_dead_one_is_found_in_seconds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ray itself waits for minutes."""
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
        started = time.monotonic()
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        with pytest.raises(ConfigError, match=f"no Ray cluster answers at 127.0.0.1:{port}: .* refused"):
            check(f"127.0.0.1:{port}")
        assert time.monotonic() - started < 2

    def test_a_silent_one_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A firewall that drops packets, here a queue that is full."""
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
        monkeypatch.setattr(addresses, "TCP_LIMIT_S", 0.2)
        with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
            port = full.getsockname()[1]
            waiting_there = [socket.socket() for _ in range(3)]
            for one in waiting_there:
                one.setblocking(False)
                one.connect_ex(("127.0.0.1", port))
            with pytest.raises(ConfigError, match="timed out"):
                check(f"127.0.0.1:{port}")
            for one in waiting_there:
                one.close()

    @pytest.mark.parametrize("given", ["no.such.host.invalid:6379", "127.0.0.1:99999"])
    def test_one_that_cannot_be_is_told(self, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
        with pytest.raises(ConfigError, match=f"no Ray cluster answers at {given}"):
            check(given)

    def test_ray_that_is_not_installed_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        with pytest.raises(ConfigError, match=r"ray is not installed(.|\n)*pip install 'pytest-areal-eval\[ray\]'"):
            check("local")

    def test_auto_without_a_cluster_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        with pytest.raises(ConfigError, match=r"no Ray cluster is known on this machine .*ray_current_cluster"):
            resolve("auto")

    def test_a_stale_address_file_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        (tmp_path / "ray").mkdir()
        file = tmp_path / "ray" / "ray_current_cluster"
        with socket.create_server(("127.0.0.1", 0)) as server:
            alive = f"127.0.0.1:{server.getsockname()[1]}"
            file.write_text(f"{alive}\n")
            assert resolve("auto") == alive
        with pytest.raises(ConfigError, match=rf"(?s){file} is stale: .* refused.*rm {file}"):
            resolve("auto")

    def test_the_head_knows_itself_by_the_clusters_address(self) -> None:
        assert own_address("127.0.2.1:6379") == "127.0.2.1"
        assert own_address("192.0.2.1:6379") is None
        assert own_address("127.0.0.1:6379") is None
        assert own_address("local") is None


class TestRuntimeEnvironment:
    def test_it_is_json_or_a_file_of_json(self, tmp_path: Path) -> None:
        (tmp_path / "env.json").write_text('{"pip": ["x"]}')
        assert read_runtime_env(' {"env_vars": {"A": "1"}}') == {"env_vars": {"A": "1"}}
        assert read_runtime_env(str(tmp_path / "env.json")) == {"pip": ["x"]}

    @pytest.mark.parametrize(("text", "says"), [("{broken", "Expecting property name"), ("no.json", "No such file")])
    def test_what_cannot_be_read_is_told(self, text: str, says: str) -> None:
        with pytest.raises(ConfigError, match=f"--ray-runtime-env={text}: .*{says}"):
            read_runtime_env(text)

    def test_a_list_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "env.json").write_text("[]")
        with pytest.raises(ConfigError, match="holds a list, not a JSON object"):
            read_runtime_env(str(tmp_path / "env.json"))


class TestFit:
    def test_a_bundle_names_what_one_node_gives(self) -> None:
        shape = Shape(gpus_per_node=2, cpus_per_node=3, mem_gb_per_node=1.5)
        assert bundle_of(shape, "NPU") == {"NPU": 2, "CPU": 3, "memory": 1_500_000_000}
        assert bundle_of(Shape(), "GPU") == {"CPU": 1}

    @pytest.mark.parametrize(
        ("shape", "gpus", "running"),
        [
            (Shape(gpus_per_node=4), (8, 8), 3),
            (Shape(gpus_per_node=3), (8, 8), 3),
            (Shape(gpus_per_node=8), (8, 4), 0),
            (Shape(nodes=2, gpus_per_node=4), (8, 4, 4), 1),
            (Shape(nodes=2, gpus_per_node=2), (4, 2, 2), 1),
        ],
    )
    def test_what_fits_is_taken(self, shape: Shape, gpus: tuple[float, ...], running: int) -> None:
        fits(shape, *gpus, running=running)

    @pytest.mark.parametrize(
        ("shape", "gpus", "running", "says"),
        [
            (Shape(gpus_per_node=9), (8, 4), 0, "asks for 9 GPUs on one node; the largest node .* head:6379 has 8"),
            (Shape(nodes=3, gpus_per_node=1), (8, 8), 0, "asks for 3 nodes; .* has 2"),
            (Shape(gpus_per_node=4), (8, 8), 4, "beside 4 others .* 1 CPU and 4 GPUs, and .* 16 GPUs on 2 nodes"),
            (Shape(gpus_per_node=3), (8, 8), 4, "does not fit beside 4 others"),
            (Shape(nodes=2, gpus_per_node=4), (8, 4), 1, "4 GPUs on each of 2 nodes"),
            (Shape(nodes=2, gpus_per_node=8), (8, 8, 4), 1, "does not fit beside 1 others"),
            (Shape(mem_gb_per_node=128), (8,), 0, r"128 GB of memory on one node; the largest .* has 64 GB of memory"),
            (Shape(gpus_per_node=1), (), 0, "asks for 1 node; .* has 0"),
        ],
    )
    def test_what_never_fits_is_told(self, shape: Shape, gpus: tuple[float, ...], running: int, says: str) -> None:
        with pytest.raises(CannotFit, match=f"m/0 .*{says}"):
            fits(shape, *gpus, running=running)

    def test_why_it_waits_is_one_line_however_large_the_cluster(self) -> None:
        nodes = [node(f"n{i}", 8, free=i) for i in range(10)]
        text = waiting(Shape(nodes=2, gpus_per_node=8), "PENDING", "GPU", nodes)
        assert text.startswith("placement group PENDING: wants 2 x (8 GPUs and 1 CPU); free: n0 0 of 8 GPUs, 8 of 8")
        assert text.endswith("; 2 more")
        assert waiting(Shape(), "PENDING", "GPU", [node("n0", 0, alive=False)]).endswith("free: no node")


class TestConnecting:
    def test_one_that_failed_is_tried_anew_and_leaves_nothing_behind(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A cluster may come up between two attempts."""
        folders: list[str] = []

        class Driver:
            lives = True

            def __init__(self, log_dir: Path) -> None:
                pass

            def ask(self, do: str, limit_s: float = 0, **arguments: Any) -> Any:
                if do == "connect":
                    folders.append(arguments["folder"])
                    if len(folders) == 1:
                        raise SchedulerError("not yet")
                return []

            def end(self) -> None:
                self.lives = False

        monkeypatch.setattr("pytest_areal_eval.schedulers.ray.scheduler.Connection", Driver)
        scheduler = RayScheduler(log_dir=tmp_path)
        with pytest.raises(SchedulerError, match="did not take this process in: not yet"):
            scheduler.capacity()
        assert scheduler.capacity().nodes == ()
        scheduler.close()
        assert [Path(folder).exists() for folder in folders] == [False, False]


class TestConnection:
    def test_a_process_that_ends_is_told_with_its_last_words(self, tmp_path: Path) -> None:
        connection = Connection(tmp_path, program="no_such_module")
        with pytest.raises(SchedulerError, match=r"The connection to Ray is lost: .*No module named no_such_module"):
            connection.ask("poll", 10)
        assert not connection.lives
        connection.end()

    def test_a_module_of_the_users_in_the_working_directory_is_not_taken_for_another(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "queue.py").write_text("raise SystemExit('the wrong one')")
        monkeypatch.chdir(tmp_path)
        connection = Connection(tmp_path, program="queue")
        with pytest.raises(SchedulerError, match="The connection to Ray is lost: see"):
            connection.ask("poll", 10)
        connection.end()

    def test_an_answer_that_does_not_come_is_given_up(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "silent.py").write_text("print('no answer', flush=True); import time; time.sleep(300)")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        connection = Connection(tmp_path, program="silent")
        with pytest.raises(SchedulerError, match=r"no answer within 0\.3 s \(poll\), its log is .*ray\.log"):
            connection.ask("poll", 0.3)
        connection.end()
        until(lambda: not connection.lives, "the end of the reading thread")

    def test_a_log_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "logs").write_text("a file")
        with pytest.raises(SchedulerError, match=r"with a log in .*/logs/ray\.log: "):
            Connection(tmp_path / "logs")
