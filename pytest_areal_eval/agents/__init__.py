"""Where agents run: the endpoint that they talk to, and the processes that hold them.

Invariant: both are started by the first agent, and nothing of them is left when the run is destroyed.
"""

from __future__ import annotations

from collections.abc import Callable

from pytest_areal_eval.agents.client import HttpClients
from pytest_areal_eval.agents.hosts import AgentHosts
from pytest_areal_eval.agents.process import AgentRef
from pytest_areal_eval.proxy import Proxy

__all__ = ["AgentHosts", "AgentRef", "Agents"]


class Agents:
    """What a run offers its agents.

    Args:
        warn: receives what a person wants to know, such as an agent that blocks.

    Attributes:
        proxy: the endpoint.
        clients: HTTP clients for the agents that run in the controller's loop.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self.proxy = Proxy()
        self.clients = HttpClients()
        self._warn = warn
        self._hosts: dict[AgentRef, AgentHosts] = {}

    def hosts(self, ref: AgentRef, most: int) -> AgentHosts:
        """The processes of one agent.

        Args:
            ref: the agent.
            most: how many processes there may be.
        """
        if ref not in self._hosts:
            self._hosts[ref] = AgentHosts(ref, most, self._warn)
        return self._hosts[ref]

    async def close(self) -> None:
        """Stop listening and end the processes."""
        await self.clients.close()
        await self.proxy.close()
        for hosts in self._hosts.values():
            await hosts.close()

    def kill(self) -> None:
        """End the processes at once; from any thread, also while the loop is stuck."""
        for hosts in self._hosts.values():
            hosts.kill()
