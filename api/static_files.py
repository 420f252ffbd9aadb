"""The dashboard: the files that the build left in `api/static`, or a page that says how to build them.

They are served where no route of the API matches, so that a wrong method on a route stays a 405. All their URLs are
relative: behind a proxy that strips a prefix, and through a tunnel, they are the same.
"""

from __future__ import annotations

import os
from mimetypes import guess_type
from pathlib import Path

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.staticfiles import NotModifiedResponse, PathLike, StaticFiles
from starlette.types import Receive, Scope, Send

FOLDER = Path(__file__).parent / "static"
# Files with a hash of their content in their name, which never change under it.
HASHED = "/assets/"
API = "/v1/"
ENCODING = "Accept-Encoding"
FOR_EVER = "public, max-age=31536000, immutable"
ASK_FIRST = "no-cache"
# By what a client may say it takes, best first: the ending of a file that was compressed when it was built.
COMPRESSED = (("br", ".br"), ("gzip", ".gz"))
NOT_BUILT = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>meshtune</title></head>
<body>
<h1>meshtune</h1>
<p>The service runs; its dashboard is not built. In the source tree, with Node 20 or newer:</p>
<pre>cd api/web &amp;&amp; npm ci &amp;&amp; npm run build</pre>
<p>The REST API is described in <a href="openapi.json">openapi.json</a>.</p>
</body>
</html>
"""


class Dashboard(StaticFiles):
    """The folder's files, each with how long it may be kept, compressed where it lies there so and the client takes
    it. `/` is index.html."""

    def __init__(self, folder: Path) -> None:
        super().__init__(directory=folder, html=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _path(scope).startswith(API):
            raise HTTPException(404)
        await super().__call__(scope, receive, send)

    def file_response(
        self, full_path: PathLike, stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        request = Headers(scope=scope)
        accepted = _accepted(request.get("accept-encoding", ""))
        headers = {"Cache-Control": FOR_EVER if _path(scope).startswith(HASHED) else ASK_FIRST, "Vary": ENCODING}
        file = str(full_path)
        for encoding, ending in COMPRESSED:
            if encoding in accepted and os.path.isfile(file + ending):
                file, stat_result = file + ending, os.stat(file + ending)
                headers["Content-Encoding"] = encoding
                break
        kind = guess_type(str(full_path))[0]
        response = FileResponse(file, status_code, headers, kind, stat_result=stat_result)
        return NotModifiedResponse(response.headers) if self.is_not_modified(response.headers, request) else response


async def not_built(scope: Scope, receive: Receive, send: Send) -> None:
    """`/` says how to build the dashboard; nothing else is there."""
    if scope["type"] != "http" or _path(scope) != "/" or scope["method"] not in ("GET", "HEAD"):
        raise HTTPException(404)
    await HTMLResponse(NOT_BUILT, headers={"Cache-Control": ASK_FIRST})(scope, receive, send)


def install(app: FastAPI, folder: Path = FOLDER) -> None:
    """Answer with the dashboard wherever no route matches."""
    app.router.default = Dashboard(folder) if (folder / "index.html").is_file() else not_built


def _path(scope: Scope) -> str:
    """Below the prefix that the server was told to have."""
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return path or "/"


def _accepted(header: str) -> frozenset[str]:
    """The encodings that an Accept-Encoding header names without refusing them (q=0)."""
    found = set()
    for entry in header.lower().split(","):
        name, _, parameters = entry.partition(";")
        weight = parameters.strip().removeprefix("q=")
        if weight not in ("0", "0.0", "0.00", "0.000"):
            found.add(name.strip())
    return frozenset(found)
