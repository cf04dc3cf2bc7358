"""A plan and what to say about it: the change that would make it fit, settings to use, where figures come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from genoctx.config import Config
from genoctx.model.count import count_active, count_parameters
from genoctx.run.devices import Fleet
from genoctx.run.plan import Limits, Plan, as_configured, make_plan, to_json
from genoctx.run.plan_fit import changes, cheapest_change, fit, from_the_host, shortage
from genoctx.run.plan_flops import NEEDED, NEEDED_LORA, STREAMED, STREAMED_LORA, forward_flops
from genoctx.run.plan_layout import DEVICE, TIERS, Settings, total
from genoctx.run.plan_probe import Measured
from genoctx.run.plan_time import BEST_SHARE, PUBLISHED, published_rates

GIB = 1 << 30


@dataclass(frozen=True)
class Answer:
    """One plan, what was given, and whether the settings were chosen."""

    config: Config
    plan: Plan
    given: Settings
    chosen: bool
    """By the search; else as the config says."""

    @cached_property
    def change(self) -> str:
        """The cheapest change that would fit; empty where it does."""
        return "" if self.plan.fits else cheapest_change(self.config, self.plan, self.plan.measured)

    @cached_property
    def priced(self) -> Plan | None:
        """Where no settings fit on one device: a plan whose weights come from the host for every chunk."""
        plan = self.plan
        if plan.fits or plan.fleet.device is None or plan.fleet.count > 1 or plan.over(DEVICE) <= 0:
            return None
        if fit(self.config, plan.fleet, plan.length, plan.limits, plan.settings) is not None:
            return None
        return from_the_host(self.config, self.plan)

    @property
    def problem(self) -> str:
        """Which memory is too small, and by how much."""
        return shortage(self.plan)

    @property
    def flops(self) -> float:
        """Executed per token of a training step."""
        work = STREAMED_LORA if self.plan.settings.lora_rank else STREAMED
        return work.per_token(forward_flops(self.config.model, self.plan.length))

    def settings(self) -> list[str]:
        """Edits of the config that lead to this plan; of its layout, too, where several devices take another."""
        p, ranks = self.config.parallel, self.plan.fleet.count
        edits = changes(as_configured(self.config, self.plan.fleet, self.given), self.plan.settings)
        if p.dp and p.dp * self.plan.settings.cp != ranks > 1:
            edits.append("parallel.dp=0")
        return edits

    def lines(self) -> list[str]:
        """What is said about a plan that stands alone."""
        plan, s = self.plan, self.plan.settings
        seconds, step = plan.cost.seconds, plan.cost.optimizer
        slow, fast = plan.tokens_per_s
        found = [
            f"window of {plan.length:,} tokens in chunks of {s.chunk:,}: {seconds.fast:.3g} to "
            f"{seconds.slow:.3g} s, {slow:,.0f} to {fast:,.0f} tokens/s",
            f"optimizer: {step.fast:.2g} to {step.slow:.2g} s a step",
            f"binds: {plan.binding}",
        ]
        if plan.fleet.count > 1:
            found.append(f"ranks: {layout_of(plan)}")
        edits = self.settings()
        if plan.fits and (self.chosen or edits):
            found.append("settings: " + (" ".join(f"--set {e}" for e in edits) if edits else "as they are"))
        return found + self.footnotes()

    def footnotes(self) -> list[str]:
        """What the figures rest on."""
        found = []
        if (priced := self.priced) is not None:
            moved = priced.cost.traffic.get("host link", 0)
            found.append(
                f"with weights streamed from the host, which the engine does not do: {priced.settings.chunk:,} tokens "
                f"a chunk, {moved / 1e12:,.1f} TB over a device's link and {priced.cost.seconds.fast:,.0f} to "
                f"{priced.cost.seconds.slow:,.0f} s a window"
            )
        if self.plan.measured is not None:
            found.append("one chunk was measured on this machine; what grows with the window is added to it")
        elif self.plan.fleet.device is None:
            found.append("closed form alone; a measured chunk is more exact (leave out --no-measure)")
        else:
            trunk, index = published_rates()
            points = " and ".join(f"{rate:,.0f} tokens/s at {n:,}" for n, rate in PUBLISHED)
            found.append(
                f"slow end: rates of the one published run ({points} on 64 B200: {trunk:.0f} TFLOP/s a device, the "
                f"indexer {index:.1f}), nothing overlapped; fast end: {BEST_SHARE:.0%} of peak, transfers hidden"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        return to_json(self.plan) | {
            "flops_per_token": self.flops,
            "change": self.change,
            "set": self.settings(),
            "weights_from_host": None if self.priced is None else to_json(self.priced),
        }


def answer(
    config: Config,
    fleet: Fleet,
    length: int,
    limits: Limits,
    given: Settings,
    measured: Measured | None,
    *,
    choose: bool,
) -> Answer:
    """The plan as given or, with ``choose``, the best that fits; the given one where none does."""
    plan = make_plan(config, fleet, length, limits, given, measured=measured)
    found = fit(config, fleet, length, limits, given, measured) if choose else None
    return Answer(config, found or plan, given, choose)


def layout_of(plan: Plan) -> str:
    """Which ranks share what."""
    s = plan.settings
    return f"cp {s.cp}, dp {plan.fleet.count // s.cp}, ep {s.ep}"


def _layout_edits(answer: Answer) -> list[str]:
    """What a config has to say for the ranks to be laid out as in the plan."""
    return [
        edit for edit in answer.settings() if edit.startswith(("parallel.cp", "parallel.ep", "parallel.dp"))
    ]


def headline(config: Config, answers: Sequence[Answer]) -> list[str]:
    """What holds for all rows of a table."""
    plan = answers[0].plan
    needed = NEEDED_LORA if plan.settings.lora_rank else NEEDED
    per_token = [needed.per_token(forward_flops(config.model, a.plan.length)) / 1e9 for a in answers]
    spread = f"{per_token[0]:.1f}" + (f" to {per_token[-1]:.1f}" if len(per_token) > 1 else "")
    have = ", ".join(
        f"{plan.limits.of(t) / GIB:,.0f} GiB {t}" for t in TIERS if plan.limits.of(t) and total(plan.bytes[t])
    )
    return [
        f"{count_parameters(config.model):,} parameters, {count_active(config.model):,} active, "
        f"{config.stream.dtype}" + (f", LoRA of rank {r}" if (r := plan.settings.lora_rank) else ""),
        f"{plan.fleet.name}: {plan.fleet.nodes} node{'s' if plan.fleet.nodes > 1 else ''}, {have}; "
        + layout_of(plan)
        + (f" (--set {' --set '.join(ranks)})" if (ranks := _layout_edits(answers[0])) else ""),
        f"training needs {spread} GFLOP a token; the column is what a streamed step executes",
    ]
