"""This process as a holder of campaigns: it takes leases, keeps them alive, and knows until when it may trust them.

A thread renews the holder's life, however long a tick takes. Writes need no trust, since the store refuses them (see
`Leases.guarding`); sending a job does, since no database stands between us and a runner: `Hold.confirm`.

A process that died on this machine need not be waited for: its file in the home is locked by the kernel while it lives.

Several services on one database take the same number of campaigns each, rounded up. None hands campaigns over for a
small difference, since the next one has to build their spaces and searches anew.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

from prometheus_client import Counter

from meshtune.runners.job_files import opened
from meshtune.search_spaces.checks import UserError
from meshtune.tuner.campaign.campaign import Campaign, Home
from meshtune.tuner.service.clocks import Presence, Skews, uptime
from meshtune.tuner.service.telemetry import Heartbeat
from meshtune.tuner.store import Drivers, Lease, OtherSchema, Store, StoreError

# A dead holder's campaigns are free after so long. It is renewed so many times as often.
LEASE_S, RENEWALS = 10.0, 4
# Of a lease's length, the holder trusts so much: clocks of two machines do not run at quite the same speed.
TRUSTED = 0.9
# A thread that stops may wait for a database that is silent.
STOP_LIMIT_S = 0.5
# A service gives back the campaigns above its share once those are more than a quarter of it, or than this many.
MAX_SURPLUS = 2
_log = logging.getLogger(__name__)


class CampaignBusy(UserError, RuntimeError):
    """Another living process works on the campaign; it must stop first."""


def process_name(holder: str) -> str:
    """A holder's name in messages: machine and process."""
    return holder.rpartition(":")[0] or "unknown"


@dataclass(slots=True)
class Hold:
    """One campaign in this process's hands."""

    lease: Lease
    holder: Holder
    # How many breaks of its life the holder had seen when the lease was last known to be good.
    breaks: int

    def confirm(self) -> None:
        """Return only while nobody else can have the campaign. Raises LeaseLost, and StoreError where nobody knows."""
        self.holder.confirm(self)


def to_take(drivers: Drivers, holder: str) -> list[str]:
    """The campaigns that the holder takes now, oldest first: of those that nobody has, up to its share."""
    free = [id for id, driver in drivers.by_campaign.items() if not driver]
    return free[: max(0, _share(drivers) - len(_own(drivers, holder)))]


def to_release(drivers: Drivers, holder: str) -> list[str]:
    """The campaigns that the holder gives back for others to take, the youngest."""
    own, share = _own(drivers, holder), _share(drivers)
    return own[share:] if len(own) - share > max(MAX_SURPLUS, share // 4) else []


def _own(drivers: Drivers, holder: str) -> list[str]:
    return [id for id, driver in drivers.by_campaign.items() if driver == holder]


def _share(drivers: Drivers) -> int:
    return -(-len(drivers.by_campaign) // max(1, drivers.servers))


class Holder:
    """All leases of one process. `take`, `hold`, `release` and `leave` from one thread.

    lease_s: how long a lease outlives its last renewal. clock: seconds, see `uptime`. holds: by campaign. skews: the
    database's clock among them. changes: how many campaigns were taken, released and lost to another process.
    heartbeat: of the thread that renews. presence: by renewals.
    """

    def __init__(self, store: Store, home: Home, lease_s: float = LEASE_S, clock: Callable[[], float] = uptime) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
        self.holds: dict[str, Hold] = {}
        self.skews = Skews()
        self.changes = Counter("meshtune_lease_changes", "Campaigns that changed hands.", ("change",), registry=None)
        self._store, self._home = store, home
        self._lease_s, self._clock = lease_s, clock
        self.heartbeat = Heartbeat()
        self.presence = Presence(1.5 * lease_s / RENEWALS, clock)
        self._renewing = threading.Lock()
        self._deadline, self._breaks = -inf, 0
        self._refused, self._refused_at = "", -inf
        self._serves = False
        self._proof: int | None = None

    def take(self, campaign_ids: Collection[str]) -> None:
        """Take those of the campaigns that nobody has, and those of a process that surely ended."""
        if not campaign_ids:
            return
        self.live()
        # Also of one whose lease is over: a dead process sends nothing, so its marked attempts are not given up.
        for other in self._store.leases.holders(campaign_ids) - {self.name}:
            self.bury(other)
        breaks = self._breaks
        for id, lease in self._store.leases.take(self.name, campaign_ids).items():
            self.holds[id] = Hold(lease, self, breaks)
            self.changes.labels("taken").inc()

    def hold(self, campaign_id: str) -> Hold:
        """The campaign, taken now if need be. Raises CampaignBusy where a living process has it, LeaseLost where one
        has taken it from us."""
        if campaign_id not in self.holds:
            self.take([campaign_id])
        if campaign_id not in self.holds:
            other = self._store.leases.driver(campaign_id)
            if not other:
                self.take([campaign_id])
        if campaign_id not in self.holds:
            raise CampaignBusy(f"process {process_name(other)} is working on campaign {campaign_id}")
        hold = self.holds[campaign_id]
        hold.confirm()
        return hold

    def create(self, campaign: Campaign, text: str = "") -> None:
        """Keep a new campaign in the store, this holder's from the start. text: its spec as written. Raises
        AlreadyExists."""
        self.live()
        breaks = self._breaks
        self._store.create_campaign(campaign, holder=self.name, text=text)
        self.holds[campaign.id] = Hold(Lease(campaign.id, self.name, 1), self, breaks)

    def confirm(self, hold: Hold) -> None:
        while True:
            if self._clock() >= self._deadline:
                self.renew()
            elif hold.breaks == self._breaks:
                return
            else:
                breaks = self._breaks
                self._store.leases.require(hold.lease)
                hold.breaks = breaks

    def forget(self, campaign_id: str) -> None:
        """Let go of a campaign that is another's now."""
        if self.holds.pop(campaign_id, None) is not None:
            self.changes.labels("lost").inc()

    def release(self, campaign_id: str) -> None:
        """Let others take the campaign at once; it is held until the store has heard of it."""
        hold = self.holds.get(campaign_id)
        if hold is None:
            return
        try:
            self._store.leases.release(hold.lease)
        except StoreError as error:
            self._refused, self._refused_at = f"campaigns cannot be given back: {error}", self._clock()
            raise
        self._refused_at = -inf
        if self.holds.get(campaign_id) is hold:  # it was not taken anew meanwhile
            del self.holds[campaign_id]
        self.changes.labels("released").inc()

    @property
    def trouble(self) -> str:
        """Of the last release, empty where there was none or it is old: it is tried again all the time."""
        return self._refused if self._clock() < self._refused_at + self._lease_s else ""

    def leave(self) -> None:
        """Release everything; this holder drives nothing any more."""
        proof, self._proof = self._proof, None
        try:
            if self._deadline > -inf:
                self._store.leases.leave(self.name)
            self.holds.clear()
            self._deadline = -inf
            if proof is not None:
                self._file.unlink(missing_ok=True)
        finally:
            # Where the store did not hear of it, the file that nobody locks tells it.
            if proof is not None:
                os.close(proof)

    def renew(self) -> None:
        """Be alive for the length of a lease from now. A life that may have ended meanwhile was broken."""
        with self._renewing:
            begun = self._clock()
            theirs_ahead_s = self._store.leases.renew(self.name, self._lease_s, serves=self._serves)
            self.skews.note("the database", theirs_ahead_s)
            if self._clock() >= self._deadline:
                self._breaks += 1  # before the deadline moves: a trust in the new one must see the break
            self._deadline = begun + TRUSTED * self._lease_s
            self.presence.confirm()

    @contextmanager
    def beating(self, *, serves: bool) -> Iterator[None]:
        """Renew from a thread meanwhile. serves: other servers count on this one to take its share of all campaigns."""
        self._serves = serves
        stop = threading.Event()
        thread = threading.Thread(target=self._beat, args=(stop,), name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(STOP_LIMIT_S)
            self._serves = False

    def bury(self, holder: str) -> bool:
        """True where that holder surely ended, and what it had is free now."""
        path = self._home.holder(holder)
        try:
            with opened(path, os.O_RDWR) as descriptor:
                # Another machine's locks may not be seen here: whatever its file system promises, only this kernel
                # counts.
                if os.pread(descriptor, 64, 0) != _boot_id():
                    return False
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        self._store.leases.leave(holder)
        path.unlink(missing_ok=True)
        return True

    def _beat(self, stop: threading.Event) -> None:
        silent = False
        while not stop.is_set():
            try:
                self.renew()
                self.heartbeat.beat()
                silent = False
            except StoreError as error:
                if isinstance(error, OtherSchema) and self._serves:
                    raise  # ends the process; the next one is of another version
                if not silent:
                    _log.warning("the leases of this process cannot be renewed: %s", error)
                silent = True
            stop.wait(self._lease_s / RENEWALS)

    def live(self) -> None:
        if self._proof is None:
            self._prove()
        if self._clock() >= self._deadline:
            self.renew()

    @property
    def _file(self) -> Path:
        return self._home.holder(self.name)

    def _prove(self) -> None:
        """Lock a file that tells others on this machine that we live. Where that is impossible they wait instead."""
        boot_id = _boot_id()
        if not boot_id:
            return
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.pwrite(descriptor, boot_id, 0)
            except OSError:
                os.close(descriptor)
                raise
            self._proof = descriptor


def _boot_id() -> bytes:
    """Which start of which kernel this is; empty where nobody says."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    return b""
