"""Errors of the client; `BY_STATUS` has those of an answer by its status."""

from __future__ import annotations

from collections.abc import Mapping

from meshtune.search_spaces.checks import UserError
from meshtune.tuner.service.views.problems import Mistake, ProblemDetails


class ServiceError(UserError):
    """The message is fit for people. retryable: whether the same call may succeed later."""

    retryable = False


class ServiceUnreachable(ServiceError):
    """No answer came in time."""

    retryable = True


class UnreadableAnswer(ServiceError):
    """What answers is no meshtune, or one of another version."""


class WaitedTooLong(ServiceError, TimeoutError):
    """The campaign is not over within the limit of `wait`; it goes on."""

    retryable = True


class Refused(ServiceError):
    """The service answered with a problem (RFC 9457): `problem` has its type and detail."""

    def __init__(self, problem: ProblemDetails) -> None:
        self.problem = problem
        shown = [f"{each.pointer or 'the body'}: {each.detail}" for each in problem.errors]
        super().__init__("\n".join([problem.title, *shown]) if shown else problem.detail)

    @property
    def mistakes(self) -> tuple[Mistake, ...]:
        """Every mistake of the request, where that is the trouble."""
        return self.problem.errors


class InvalidRequest(Refused):
    """The spec, body or query is wrong; `mistakes` name each place."""


class NotAuthenticated(Refused):
    """There is no token, or one that opens nothing."""


class NotAllowed(Refused):
    """The token does not allow this, or its quota leaves no room."""


class NotFound(Refused):
    pass


class Conflict(Refused):
    """What it is about is in a state that does not allow this."""


class Outdated(Conflict):
    """Somebody else has changed the campaign since the version that was named: `refresh` it and decide again."""


class TooManyRequests(Refused):
    retryable = True


class ServiceTrouble(Refused):
    """A status from 500 on; 500 itself is a defect."""

    def __init__(self, problem: ProblemDetails) -> None:
        super().__init__(problem)
        self.retryable = problem.status != 500


BY_STATUS: Mapping[int, type[Refused]] = {
    401: NotAuthenticated,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    412: Outdated,
    **dict.fromkeys((413, 415, 422), InvalidRequest),
    429: TooManyRequests,
}
