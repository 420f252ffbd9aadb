"""DeepHyper's Bayesian optimisation (CBO), on the enumerated legal plans and rebuilt from the history at every ask.

CBO's sampling function returns all legal unseen plans, so that its acquisition is an exact argmax over them; where
knobs make too many, those around the best ones and random ones (`surrogate`). What DeepHyper 0.13.2 does otherwise, and
why it is wrapped so, was measured: it proposes the same plan to each asking worker until it is told, re-proposes plans
that it was told but did not ask, and stops after 100 failures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any, Literal

from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.trial import Proposal
from meshtune.tuner.search.base import Observation, Task
from meshtune.tuner.search.library.encoding import Encoding, Features, History
from meshtune.tuner.search.library.memory_guard import MemoryGuard
from meshtune.tuner.search.library.surrogate import Offer, SurrogateOptions, propose

# DeepHyper makes Python objects of every candidate for every point of a batch: of 20,000, at 100 observations, ask(1)
# takes 0.4 s of CPU and ask(8) 2.1 s, and both grow in proportion. More than this many are thinned out at random.
MAX_CANDIDATES = 20_000
# DeepHyper's own schedule ("periodic-exp-decay"): kappa falls from 1.96 to 0.01 over 10 trials, then starts again. It
# counts what this optimizer object was asked, which is always nothing here, so the count is ours.
KAPPA_FIRST, KAPPA_LAST, KAPPA_PERIOD = 1.96, 0.01, 10
# DeepHyper's default of 10 trees that stop splitting at an impurity of .005 predicts the same score for many plans
# (benchmarks/log.md, with what else was tried).
TREES = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepHyperOptions(SurrogateOptions):
    """filter_failures: the score of a failed plan: below the worst success, the more so the more memory it lacked
    ("graded"), as the worst success ("min"), or as the mean one ("mean"). Before the first success "graded" holds.

    The last two are DeepHyper's own ("min" its default); with one success they make all scores equal. Its third way,
    "ignore", proposes the same failing plan for ever.
    """

    filter_failures: Literal["graded", "min", "mean"] = "graded"


@dataclass(frozen=True, slots=True)
class DeepHyperSearch:
    """CBO with extremely randomised trees over the legal unseen plans."""

    seed: int
    options: DeepHyperOptions = DeepHyperOptions()
    guard: MemoryGuard = field(default_factory=MemoryGuard, compare=False)

    def ask(self, task: Task, seen: Sequence[Observation], n: int) -> Proposal:
        kappa = KAPPA_FIRST * (KAPPA_LAST / KAPPA_FIRST) ** (len(seen) % KAPPA_PERIOD / KAPPA_PERIOD)

        def acquire(history: History, under_way: Sequence[Features], offer: Offer, n: int, seed: int) -> list[Plan]:
            encoding = history.encoding
            offered = [encoding.features(index) for index in offer.positions[:MAX_CANDIDATES].tolist()]
            with TemporaryDirectory(prefix="meshtune-deephyper-") as scratch:
                search = self._build(encoding, offered, seed, kappa, scratch)
                search.tell(self._observations(history, under_way, seed))
                indexes = [encoding.index_of(answer) for answer in search.ask(n)]
            return [history.plans[index] for index in dict.fromkeys(indexes) if index is not None]

        return propose(task, seen, n, self.seed, self.options, self.guard, acquire)

    def _observations(
        self, history: History, under_way: Sequence[Features], seed: int
    ) -> list[tuple[Features, float | str]]:
        """The observations for CBO. Plans under way get the value that `cl_max` assumes within a batch: the best."""
        worths = history.traded_off(seed) if history.pareto else history.scores
        values: list[float | str] = [*history.graded(worths)]
        if worths and self.options.filter_failures != "graded":
            samples = zip(values, history.samples, strict=True)
            values = [f"F_{one.verdict}" if one.score is None else value for value, one in samples]
        lie = max(worths, default=0.0)
        features = [*(one.features for one in history.samples), *under_way]
        return list(zip(features, [*values, *(lie for _ in under_way)], strict=True))

    def _build(self, encoding: Encoding, offered: list[Features], seed: int, kappa: float, scratch: str) -> Any:
        from deephyper.hpo import CBO, HpProblem

        problem = HpProblem()
        for name, features in encoding.choices.items():
            problem.add_hyperparameter(list(features), name)
        problem.set_sampling_fn(lambda size: offered)
        # "graded" tells it of no failure.
        imputed = "min" if self.options.filter_failures == "graded" else self.options.filter_failures
        return CBO(
            problem,
            random_state=seed,
            log_dir=scratch,
            checkpoint_history_to_csv=False,
            surrogate_model="ET",
            surrogate_model_kwargs={"n_estimators": TREES, "min_impurity_decrease": 0.0},
            acq_func="UCBd",
            acq_func_kwargs={"kappa": kappa, "scheduler": {"type": "constant"}},
            acq_optimizer="sampling",
            acq_optimizer_kwargs={"filter_failures": imputed, "max_total_failures": -1},
            multi_point_strategy="cl_max",
            n_initial_points=1,
        )
