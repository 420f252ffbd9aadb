"""Errors of the client.

ServiceError              `retryable`: whether the same call may succeed later
+-- ServiceUnreachable    no answer came in time; retryable
+-- UnreadableAnswer      what answers is no meshtune, or one of another version
+-- WaitedTooLong         the campaign is not over within the limit of `wait`; it goes on. Also a TimeoutError
+-- Refused               the service answered with a problem (RFC 9457): `problem` has its type, detail and mistakes
    +-- InvalidRequest    422, 413, 415: the spec, body or query is wrong; `mistakes` name each place
    +-- NotAuthenticated  401: no token, or one that opens nothing
    +-- NotAllowed        403: the token does not allow this, or its quota leaves no room
    +-- NotFound          404
    +-- Conflict          409: what it is about is in a state that does not allow this
    +-- TooManyRequests   429, retryable
    +-- ServiceTrouble    5xx; retryable but for 500, which is a defect
"""

from __future__ import annotations

from collections.abc import Mapping

from meshtune.search_spaces.checks import UserError
from meshtune.tuner.service.views.problems import Mistake, ProblemDetails


class ServiceError(UserError):
    """The message is fit for people."""

    retryable = False


class ServiceUnreachable(ServiceError):
    retryable = True


class UnreadableAnswer(ServiceError):
    pass


class WaitedTooLong(ServiceError, TimeoutError):
    retryable = True


class Refused(ServiceError):
    def __init__(self, problem: ProblemDetails) -> None:
        self.problem = problem
        shown = [f"{each.pointer or 'the body'}: {each.detail}" for each in problem.errors]
        super().__init__("\n".join([problem.title, *shown]) if shown else problem.detail)

    @property
    def mistakes(self) -> tuple[Mistake, ...]:
        """Every mistake of the request, where that is the trouble."""
        return self.problem.errors


class InvalidRequest(Refused):
    pass


class NotAuthenticated(Refused):
    pass


class NotAllowed(Refused):
    pass


class NotFound(Refused):
    pass


class Conflict(Refused):
    pass


class TooManyRequests(Refused):
    retryable = True


class ServiceTrouble(Refused):
    def __init__(self, problem: ProblemDetails) -> None:
        super().__init__(problem)
        self.retryable = problem.status != 500


_BY_STATUS: Mapping[int, type[Refused]] = {
    401: NotAuthenticated,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    413: InvalidRequest,
    415: InvalidRequest,
    422: InvalidRequest,
    429: TooManyRequests,
}


def refusal_of(problem: ProblemDetails) -> Refused:
    kind = _BY_STATUS.get(problem.status, ServiceTrouble if problem.status >= 500 else Refused)
    return kind(problem)
