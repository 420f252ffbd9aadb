"""An API server of Kubernetes for the tests, over HTTP, with the parts behind it (`kubernetes_controllers.py`) by which
Jobs run: what the official client asks is answered as the API documents it, from objects that are checked against
the client's own models, which are generated from the API's schema.

Not a cluster. What differs: objects of the runner's kinds alone, no watches, patches, conflicts of versions or pages; a
service account's rights are one Role; quotas count Jobs and pods; images, volumes and users are not there (a container
is processes of this machine, in the folder it names); a pod's DNS name stands for 127.0.0.1 where the Service, the
host name and the labels would make it one; Kueue is its webhook's refusal and what a test does to `suspend`.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Collection, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml
from kubernetes import client
from kubernetes_controllers import Controllers

Document = dict[str, Any]
NAMESPACE, TOKEN = "team", "a token of the laboratory"
_PATH = re.compile(r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)/namespaces/(?P<namespace>[^/]+)/(?P<rest>.+)")
# (group, plural) -> kind
_KINDS = {("batch", "jobs"): "Job", ("", "pods"): "Pod", ("", "services"): "Service", ("", "events"): "Event"}
_KUEUE = {("kueue.x-k8s.io", "localqueues"): "LocalQueue", ("kueue.x-k8s.io", "workloads"): "Workload"}
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class Refusal(Exception):
    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class KubernetesLab:
    """nodes: name -> labels; each has so many of the extended resource `example.com/device`."""

    def __init__(self, folder: Path, nodes: Mapping[str, Mapping[str, str]], devices: int = 4) -> None:
        self.folder, self.nodes, self.devices = folder, nodes, devices
        self.lock = threading.RLock()
        self.objects: dict[str, dict[str, Document]] = {}
        self.kueue_version: str | None = None
        # (verb, "group/plural[/subresource]") of the Role; None: all.
        self.rights: Collection[tuple[str, str]] | None = None
        self.max_jobs: int | None = None
        self.max_pods: int | None = None
        # image -> (reason, message) of a container that waits.
        self.bad_images: dict[str, tuple[str, str]] = {}
        # The next creation is done, and nobody hears of it; and whether nothing is answered.
        self.loses_answer = threading.Event()
        self.silent = threading.Event()
        self.asked: list[tuple[str, str]] = []
        self.changes = 0
        lab = self

        class Handler(_Handler):
            laboratory = lab

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.controllers = Controllers(self)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.controllers.start()
        cluster = {"server": f"http://127.0.0.1:{self.server.server_port}"}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab", "namespace": NAMESPACE}}],
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": "lab", "user": {"token": TOKEN}}],
        }
        self.config = folder / "kubeconfig"
        self.config.write_text(yaml.safe_dump(document))

    def __enter__(self) -> KubernetesLab:
        return self

    def __exit__(self, *_: object) -> None:
        self.reset()
        self.controllers.stop()
        self.server.shutdown()
        self.server.server_close()

    def reset(self) -> None:
        """As it was, without objects; waits until no process of a pod is left."""
        self.silent.clear()
        self.loses_answer.clear()
        with self.lock:
            self.kueue_version, self.rights = None, None
            self.max_jobs, self.max_pods = None, None
            self.bad_images.clear()
            self.asked.clear()
            for job in self.all("Job"):
                job["metadata"]["deletionTimestamp"] = now()
            for pod in self.all("Pod"):
                self.controllers.delete_pod(pod, grace_s=0)
        deadline = time.monotonic() + 30
        while self.all("Job") or self.all("Pod"):
            assert time.monotonic() < deadline, "pods outlived their deletion"
            time.sleep(0.01)
        self.objects.clear()
        self.controllers.dead.clear()

    def all(self, kind: str) -> list[Document]:
        with self.lock:
            return list(self.objects.get(kind, {}).values())

    def put(self, kind: str, name: str, document: Document) -> Document:
        """Add an object, with what the server fills in."""
        with self.lock:
            self.changes += 1
            own = {"namespace": NAMESPACE, "uid": str(uuid.uuid4()), "creationTimestamp": now()}
            own |= {"resourceVersion": str(self.changes), "name": name}
            document["metadata"] = {**document.get("metadata", {}), **own}
            self.objects.setdefault(kind, {})[name] = document
            return document

    def remove(self, kind: str, name: str) -> None:
        with self.lock:
            self.objects.get(kind, {}).pop(name, None)

    @contextmanager
    def only_with(self, role: Document):
        """While only what this Role allows is allowed."""
        self.rights = {
            (verb, f"{group}/{resource}")
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        yield
        self.rights = None

    def answer(self, method: str, path: str, query: Mapping[str, str], body: Document | None) -> Document | str:
        match = _PATH.fullmatch(path)
        if match is None:
            raise Refusal(404, "NotFound", "404 page not found")
        group, (plural, *more) = match["group"] or "", match["rest"].split("/")
        name, sub = (*more, "", "")[:2]
        kinds = _KINDS | (_KUEUE if match["version"] == self.kueue_version else {})
        kind = kinds.get((group, plural))
        if kind is None:
            raise Refusal(404, "NotFound", "404 page not found")
        verb = {"POST": "create", "DELETE": "delete"}.get(method, "get" if name else "list")
        with self.lock:
            right = (verb, f"{group}/{plural}" + (f"/{sub}" if sub else ""))
            self.asked.append(right)
            where = f'in API group "{group}" in the namespace "{match["namespace"]}"'
            full = f"{plural}.{group}" if group else plural
            if self.rights is not None and right not in self.rights:
                told = f'{full} is forbidden: User "lab" cannot {verb} resource "{plural}" {where}'
                raise Refusal(403, "Forbidden", told)
            if verb == "create":
                return self._create(kind, full, match["namespace"], body or {})
            found = self.objects.get(kind, {}) if match["namespace"] == NAMESPACE else {}
            if verb == "list":
                return self._list(kind, match, found, query)
            if name not in found:
                raise Refusal(404, "NotFound", f'{full} "{name}" not found')
            if sub == "log":
                return self.controllers.log(found[name], int(query.get("tailLines", 10_000)))
            if verb == "delete":
                assert query.get("propagationPolicy") == "Foreground", query
                found[name]["metadata"].setdefault("deletionTimestamp", now())
                found[name]["metadata"]["finalizers"] = ["foregroundDeletion"]
            return found[name]

    def _list(
        self, kind: str, match: re.Match[str], found: Mapping[str, Document], query: Mapping[str, str]
    ) -> Document:
        wanted = dict(pair.split("=", 1) for pair in query.get("labelSelector", "").split(",") if pair)
        items = [one for one in found.values() if wanted.items() <= (one["metadata"].get("labels") or {}).items()]
        for pair in filter(None, query.get("fieldSelector", "").split(",")):
            field, value = pair.split("=", 1)
            items = [one for one in items if _at(one, field) == value]
        group = f"{match['group']}/" if match["group"] else ""
        metadata = {"resourceVersion": str(self.changes)}
        return {"apiVersion": f"{group}{match['version']}", "kind": f"{kind}List", "metadata": metadata, "items": items}

    def _create(self, kind: str, full: str, namespace: str, body: Document) -> Document:
        name = body.get("metadata", {}).get("name", "")
        if namespace != NAMESPACE:
            raise Refusal(404, "NotFound", f'namespaces "{namespace}" not found')
        require_as_documented(kind, body)
        if not _NAME.fullmatch(name):
            raise Refusal(422, "Invalid", f'{kind} "{name}" is invalid: metadata.name: Invalid value')
        if name in self.objects.get(kind, {}):
            raise Refusal(409, "AlreadyExists", f'{full} "{name}" already exists')
        if kind == "Job":
            if self.max_jobs is not None and len(self.all("Job")) >= self.max_jobs:
                told = f"exceeded quota: jobs, requested: count/jobs.batch=1, limited: count/jobs.batch={self.max_jobs}"
                raise Refusal(403, "Forbidden", f'{full} "{name}" is forbidden: {told}')
            self.controllers.complete_job(body, name)
        return self.put(kind, name, body)


def require_as_documented(kind: str, document: Document) -> None:
    """As `fieldValidation=Strict`: no unknown field, every value of its type."""
    model = getattr(client, f"V1{kind}")
    try:
        read = client.ApiClient().sanitize_for_serialization(model.from_dict(document))
    except ValueError as error:
        raise Refusal(400, "BadRequest", f"{kind} in version v1 cannot be handled as a {kind}: {error}") from None
    if read != document:
        raise Refusal(400, "BadRequest", f"strict decoding error: unknown field: {read} is not {document}")


def _at(document: Document, path: str) -> Any:
    value: Any = document
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    laboratory: KubernetesLab

    def _do(self) -> None:
        lab, url = self.laboratory, urlsplit(self.path)
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
        while lab.silent.is_set():
            time.sleep(0.01)
        try:
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise Refusal(401, "Unauthorized", "Unauthorized")
            code, told = 200, lab.answer(self.command, url.path, dict(parse_qsl(url.query)), body)
            if self.command == "POST":
                code = 201
                if lab.loses_answer.is_set():
                    lab.loses_answer.clear()
                    self.close_connection = True
                    return
            with lab.lock:
                text = told if isinstance(told, str) else json.dumps(told)
        except Refusal as error:
            code = error.code
            status = {"status": "Failure", "message": str(error), "reason": error.reason, "code": code}
            text = json.dumps({"kind": "Status", "apiVersion": "v1", "metadata": {}, **status})
        content = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = _do

    def log_message(self, *_: object) -> None:
        pass
