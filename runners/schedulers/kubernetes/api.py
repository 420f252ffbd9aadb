"""The requests that the runner makes of the API server, as plain documents; the only user of the official client. Every
request ends within its time limit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from meshtune.runners.base import RunnerUnavailable
from meshtune.runners.schedulers.kubernetes.manifests import MANAGED
from meshtune.runners.schedulers.kubernetes.options import KubernetesOptions
from meshtune.runners.untrusted_text import Limits, UnreadableText, decoded, read_json

Document = Mapping[str, Any]

_SELECTOR = ",".join(f"{name}={value}" for name, value in MANAGED.items())
# Of thousands of pods.
_LIMITS = Limits(max_bytes=256 << 20, max_values=10_000_000)
# Nobody knows whether it was done, or who asks: not an answer to the request itself.
_NO_ANSWER = (401, 408, 429)
_KUEUE, _KUEUE_VERSIONS = "kueue.x-k8s.io", ("v1beta2", "v1beta1")
# Of a pod's log: its end.
_LOG_LINES = 2000


class Rejected(Exception):
    """The API server answered that it does not do this. code: of HTTP."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


class KubernetesApi:
    """One namespace. Connects when it is first asked. Every method raises RunnerUnavailable and Rejected."""

    def __init__(self, options: KubernetesOptions) -> None:
        self._options = options
        self._client: Any = None
        self._kueue_versions: Sequence[str] = _KUEUE_VERSIONS

    def create_job(self, manifest: Document) -> None:
        """Rejected with 409: there is a Job of that name."""
        self._ask("BatchV1Api", "create_namespaced_job", self._options.namespace, body=manifest)

    def create_service(self, manifest: Document) -> None:
        """As `create_job`."""
        self._ask("CoreV1Api", "create_namespaced_service", self._options.namespace, body=manifest)

    def job(self, name: str) -> Document | None:
        try:
            return self._ask("BatchV1Api", "read_namespaced_job", name, self._options.namespace)
        except Rejected as error:
            if error.code == 404:
                return None
            raise

    def jobs(self) -> list[Document]:
        """Those of meshtune, of whatever service."""
        return self._items("BatchV1Api", "list_namespaced_job", label_selector=_SELECTOR)

    def pods(self) -> list[Document]:
        return self._items("CoreV1Api", "list_namespaced_pod", label_selector=_SELECTOR)

    def warnings(self) -> list[Document]:
        """Events: pods that could not be made, volumes that could not be mounted."""
        return self._items("CoreV1Api", "list_namespaced_event", field_selector="type=Warning")

    def workloads(self) -> list[Document]:
        return list(self._kueue("list_namespaced_custom_object", "workloads").get("items") or [])

    def require_queue(self, name: str) -> None:
        """Rejected with 404: there is no LocalQueue of that name."""
        self._kueue("get_namespaced_custom_object", "localqueues", name)

    def delete_job(self, name: str) -> None:
        """With its pods, which are told first. One that is gone is gone."""
        try:
            self._ask(
                *("BatchV1Api", "delete_namespaced_job", name, self._options.namespace), propagation_policy="Foreground"
            )
        except Rejected as error:
            if error.code != 404:
                raise

    def log(self, pod: str) -> str:
        """The end of what a pod wrote."""
        response = self._send(
            "CoreV1Api", "read_namespaced_pod_log", pod, self._options.namespace, tail_lines=_LOG_LINES
        )
        return decoded(response)

    def close(self) -> None:
        if self._client is not None:
            self._client.rest_client.pool_manager.clear()
            self._client = None

    def _kueue(self, verb: str, plural: str, *name: str) -> Document:
        error: Rejected | None = None
        for version in self._kueue_versions:
            try:
                answer = self._ask("CustomObjectsApi", verb, _KUEUE, version, self._options.namespace, plural, *name)
            except Rejected as refusal:
                if refusal.code != 404:
                    raise
                error = refusal
                continue
            self._kueue_versions = (version,)
            return answer
        raise error or Rejected(404, "no version of Kueue")

    def _items(self, api: str, verb: str, **arguments: Any) -> list[Document]:
        return list(self._ask(api, verb, self._options.namespace, **arguments).get("items") or [])

    def _ask(self, api: str, verb: str, *arguments: Any, **named: Any) -> Document:
        try:
            document = read_json(self._send(api, verb, *arguments, **named), _LIMITS)
        except UnreadableText as error:
            raise RunnerUnavailable(f"Kubernetes' answer {error}") from None
        if not isinstance(document, dict):
            raise RunnerUnavailable("Kubernetes' answer is not an object")
        return document

    def _send(self, api: str, verb: str, *arguments: Any, **named: Any) -> bytes:
        with _errors(self._options.call_limit_s):
            if self._client is None:
                self._client = _connect(self._options.context)
            from kubernetes import client

            method: Callable[..., Any] = getattr(getattr(client, api)(self._client), verb)
            response = method(*arguments, **named, _preload_content=False, _request_timeout=self._options.call_limit_s)
            content: bytes = response.data if response.data is not None else response.read()
            if not 200 <= response.status <= 299:
                raise _refusal(response.status, content)
            return content


@contextmanager
def _errors(limit_s: float) -> Iterator[None]:
    """The library's errors as ours."""
    from kubernetes.client.exceptions import ApiException
    from kubernetes.config import ConfigException
    from pydantic import ValidationError
    from urllib3.exceptions import HTTPError, NewConnectionError, TimeoutError

    try:
        yield
    except ApiException as error:
        raise _refusal(error.status or 0, error.body or error.reason or "") from None
    except ValidationError as error:
        # The library's own models of requests, made from the API's schema.
        first = error.errors()[0]
        raise Rejected(422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except ConfigException as error:
        raise RunnerUnavailable(f"Kubernetes cannot be asked: {error}") from None
    except NewConnectionError as error:  # to the library a kind of timeout
        raise RunnerUnavailable(f"the API server of Kubernetes does not answer: {error}") from None
    except TimeoutError:
        raise RunnerUnavailable(f"the API server of Kubernetes did not answer within {limit_s:g} s") from None
    except (HTTPError, OSError) as error:
        raise RunnerUnavailable(f"the API server of Kubernetes does not answer: {error}") from None


def _refusal(code: int, body: str | bytes) -> Exception:
    """The server's own sentence, in its Status object."""
    text = body if isinstance(body, str) else decoded(body)
    try:
        words = read_json(text, _LIMITS).get("message") or text
    except (UnreadableText, AttributeError):
        words = text
    message = " ".join(str(words).split())[:1000] or f"status {code}"
    if code < 400 or code in _NO_ANSWER or code >= 500:
        return RunnerUnavailable(f"the API server of Kubernetes answered {code}: {message}")
    return Rejected(code, message)


def _connect(context: str) -> Any:
    """As kubectl would; inside a pod by its own account."""
    from kubernetes import client, config

    configuration = client.Configuration()
    inside = "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ and not context
    if inside:
        config.load_incluster_config(client_configuration=configuration)
    else:
        config.load_kube_config(
            # The library reads the variable once, when it is imported.
            config_file=os.environ.get("KUBECONFIG") or None,
            context=context or None,
            client_configuration=configuration,
            persist_config=False,
        )
    # The service asks again by itself, and other campaigns wait.
    configuration.retries = False
    return client.ApiClient(configuration)
