"""The dashboard: the files that the build left in `api/static`, or a page that says how to build them.

They are read once, when the service starts: pages and scripts are always of one build (starlette's StaticFiles
would mix two), and wait for no disk. They are served where no route of the API matches, so that a wrong method on a
route stays a 405. All URLs in them are relative: they work behind a proxy that strips a prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from mimetypes import guess_type
from pathlib import Path
from typing import NamedTuple

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import NotModifiedResponse
from starlette.types import Receive, Scope, Send

FOLDER = Path(__file__).parent / "static"
METHODS = ("GET", "HEAD")
# Files with a hash of their content in their name, which never change under it.
HASHED = "/assets/"
PAGES = {"/": "/index.html", "/docs": "/docs.html"}
FOR_EVER = "public, max-age=31536000, immutable"
ASK_FIRST = "no-cache"
# The endings of files that were compressed when they were built, by encoding, best first.
COMPRESSED = {"br": ".br", "gzip": ".gz"}
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


class Form(NamedTuple):
    """One form of a file, plain or compressed."""

    body: bytes
    headers: Mapping[str, str]


class Dashboard:
    """The folder's files, each compressed where it lies there so and the client accepts it. `/` is index.html."""

    def __init__(self, folder: Path) -> None:
        self._files = {
            f"/{file.relative_to(folder).as_posix()}": _forms(file, folder)
            for file in folder.rglob("*")
            if file.is_file() and file.suffix not in COMPRESSED.values()
        }
        # No slash after it: addresses in the page are relative to the root.
        self._files |= {short: self._files[file] for short, file in PAGES.items() if file in self._files}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        forms = self._files.get(_path(scope)) if scope["type"] == "http" else None
        if forms is None:
            raise HTTPException(404)
        if scope["method"] not in METHODS:
            raise HTTPException(405, headers={"Allow": ", ".join(METHODS)})
        await answer_with(forms, Headers(scope=scope))(scope, receive, send)


def answer_with(forms: Mapping[str, Form], request: Headers) -> Response:
    """The best form that the client accepts, 304 where it has it. forms: by encoding, best first, "identity" last."""
    accepted = _accepted(request.get("accept-encoding", ""))
    form = next((form for encoding, form in forms.items() if encoding in accepted), forms["identity"])
    response = Response(form.body, headers=form.headers)
    return NotModifiedResponse(response.headers) if has_version(request, form.headers["ETag"]) else response


def has_version(request: Headers, etag: str) -> bool:
    """Whether the client has it: weak and strong tags of a version are alike (RFC 9110, 13.1.2)."""
    known = request.get("if-none-match", "")
    return etag.removeprefix("W/") in known or known.strip() == "*"


async def not_built(scope: Scope, receive: Receive, send: Send) -> None:
    """`/` and `/docs` say how to build the dashboard; nothing else is there."""
    if scope["type"] != "http" or _path(scope) not in PAGES or scope["method"] not in METHODS:
        raise HTTPException(404)
    await HTMLResponse(NOT_BUILT, headers={"Cache-Control": ASK_FIRST})(scope, receive, send)


def install(app: FastAPI, folder: Path = FOLDER) -> None:
    """Answer with the dashboard wherever no route matches."""
    app.router.default = Dashboard(folder) if (folder / "index.html").is_file() else not_built


def _forms(file: Path, folder: Path) -> dict[str, Form]:
    hashed = f"/{file.relative_to(folder).as_posix()}".startswith(HASHED)
    kind = guess_type(file.name)[0] or "application/octet-stream"
    bodies = {
        encoding: file.with_name(file.name + ending) for encoding, ending in {**COMPRESSED, "identity": ""}.items()
    }
    return forms_of(
        {encoding: form.read_bytes() for encoding, form in bodies.items() if form.is_file()},
        content_type=f"{kind}; charset=utf-8" if kind.startswith("text/") else kind,
        cache_control=FOR_EVER if hashed else ASK_FIRST,
    )


def forms_of(bodies: Mapping[str, bytes], *, content_type: str, cache_control: str) -> dict[str, Form]:
    common = {"Content-Type": content_type, "Cache-Control": cache_control, "Vary": "Accept-Encoding"}
    forms = {}
    for encoding, body in bodies.items():
        coded = {} if encoding == "identity" else {"Content-Encoding": encoding}
        forms[encoding] = Form(body, {**common, **coded, "ETag": f'"{sha256(body).hexdigest()[:32]}"'})
    return forms


def _path(scope: Scope) -> str:
    """Below the prefix that the server was told to have."""
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return path or "/"


def _accepted(header: str) -> frozenset[str]:
    """The encodings that an Accept-Encoding header names without refusing them (q=0)."""
    names = set()
    for entry in header.lower().split(","):
        name, _, parameters = entry.partition(";")
        if parameters.strip().removeprefix("q=") not in ("0", "0.0", "0.00", "0.000"):
            names.add(name.strip())
    return frozenset(names)
