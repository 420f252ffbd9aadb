"""What must hold after any number of deaths, read from PostgreSQL by plain SQL; shares no code with the store.

The other witness is the ledger: each job appends its name to it, once, as the first thing it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, LiteralString

import psycopg

# Each row that these find is one case.
LOST: Mapping[str, LiteralString] = {
    "campaign that did not complete": "SELECT id, state, reason FROM campaigns WHERE state <> 'completed'",
    "trial without an end": """
        SELECT c.id, t.number, a.state, a.verdict FROM campaigns c JOIN trials t ON t.campaign_id = c.id
        LEFT JOIN attempts a ON a.trial_id = t.id
            AND a.number = (SELECT max(number) FROM attempts WHERE trial_id = t.id)
        WHERE a.state IS DISTINCT FROM 'done' OR a.verdict IS NULL OR a.verdict = 'lost'""",
    "campaign with fewer trials than its budget, or more": """
        SELECT c.id, count(t.id) FROM campaigns c LEFT JOIN trials t ON t.campaign_id = c.id
        GROUP BY c.id, c.spec -> 'budget' ->> 'trials'
        HAVING count(t.id) <> (c.spec -> 'budget' ->> 'trials')::int""",
    "gap in the numbers of trials": """
        SELECT campaign_id, count(*), max(number) FROM trials GROUP BY campaign_id
        HAVING max(number) + 1 <> count(*)""",
    "gap in the numbers of attempts": """
        SELECT trial_id, count(*), max(number) FROM attempts GROUP BY trial_id HAVING max(number) <> count(*)""",
    "ok attempt without a measurement": """
        SELECT a.job_name FROM attempts a LEFT JOIN measurements m ON m.attempt_id = a.id
        WHERE a.verdict = 'ok' AND m.attempt_id IS NULL""",
}
DOUBLED: Mapping[str, LiteralString] = {
    "plan tried twice": """
        SELECT campaign_id, plan_key, count(*) FROM trials GROUP BY campaign_id, plan_key HAVING count(*) > 1""",
    "attempt after an end that is no loss": """
        SELECT a.job_name, a.verdict FROM attempts a WHERE a.verdict IS DISTINCT FROM 'lost'
            AND EXISTS (SELECT 1 FROM attempts later WHERE later.trial_id = a.trial_id AND later.number > a.number)""",
    "ends told in events that are not those of attempts": """
        SELECT t.campaign_id, t.number, count(a.id) FROM trials t JOIN attempts a ON a.trial_id = t.id
        GROUP BY t.campaign_id, t.number HAVING count(a.id) <> (
            SELECT count(*) FROM events e WHERE e.campaign_id = t.campaign_id AND e.kind = 'trial.done'
                AND (e.data ->> 'number')::int = t.number)""",
}


def findings(database: str, ledger: Path, created: Collection[str], unanswered: int) -> Mapping[str, list[str]]:
    """Cases by kind: lost, doubled, started twice. created: the campaigns whose creation was answered. unanswered: how
    many more may be there, one for each."""
    started = Counter(ledger.read_text().split())
    with psycopg.connect(database) as connection:

        def rows(query: LiteralString) -> list[tuple[Any, ...]]:
            return connection.execute(query).fetchall()

        found = {
            kind: [f"{words}: {row}" for words, query in queries.items() for row in rows(query)]
            for kind, queries in (("lost", LOST), ("doubled", DOUBLED))
        }
        known = {id for (id,) in rows("SELECT id FROM campaigns")}
        verdicts = dict(rows("SELECT job_name, verdict FROM attempts"))
    found["lost"] += [f"campaign that was created and is not there: {id}" for id in set(created) - known]
    found["lost"] += [f"ok job that never started: {n}" for n, v in verdicts.items() if v == "ok" and n not in started]
    untold = sorted(known - set(created))
    found["doubled"] += [f"campaign that nobody was told of: {id}" for id in untold[unanswered:]]
    found["started twice"] = [f"job that started {count} times: {name}" for name, count in started.items() if count > 1]
    found["started twice"] += [f"job that no attempt has: {name}" for name in started if name not in verdicts]
    return found


def totals(database: str, ledger: Path) -> Mapping[str, int]:
    with psycopg.connect(database) as connection:

        def count(query: LiteralString) -> int:
            row = connection.execute(query).fetchone()
            assert row is not None
            return int(row[0])

        return {
            "campaigns": count("SELECT count(*) FROM campaigns"),
            "trials": count("SELECT count(*) FROM trials"),
            "attempts": count("SELECT count(*) FROM attempts"),
            "attempts lost and made again": count("SELECT count(*) FROM attempts WHERE verdict = 'lost'"),
            "starts in the ledger": len(ledger.read_text().split()),
        }
