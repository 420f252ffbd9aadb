"""The tools of `meshtune mcp`, asked by the protocol package's own client."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from mcp import Client, StdioServerParameters

from meshtune.tuner.client.agent import TOOLS

Call = Callable[..., Awaitable[Any]]
MOST_CHARACTERS = 4500


class Refusal(Exception):
    """The answer of a tool that is an error."""


def talk(url: str, token: str, script: Callable[[Call], Awaitable[Any]]) -> Any:
    """What a script of calls comes to. Of each call a tool's answer, which keeps to its schema and its length."""
    own = {"MESHTUNE_SERVER": url, "MESHTUNE_TOKEN": token, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    command = StdioServerParameters(command=sys.executable, args=["-m", "meshtune.tuner.cli", "mcp"], env=own)

    async def whole() -> Any:
        failure: Exception | None = None
        async with Client(command) as client:

            async def call(tool: str, /, **arguments: Any) -> Any:
                answer = await client.call_tool(tool, arguments)
                (content,) = answer.content
                assert "Traceback" not in content.text
                if answer.is_error:
                    raise Refusal(content.text)
                assert json.loads(content.text) == answer.structured_content
                assert len(content.text) < MOST_CHARACTERS, (tool, len(content.text))
                return answer.structured_content

            assert [tool.name for tool in (await client.list_tools()).tools] == [*TOOLS]
            try:
                return await script(call)
            except Exception as error:  # bare, not in the groups of the connection's tasks
                failure = error
        raise failure

    return asyncio.run(whole())
