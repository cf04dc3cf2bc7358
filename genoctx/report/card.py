"""The header card of a report: what was evaluated, on what, and what of it was counted."""

from __future__ import annotations

from typing import Any

from genoctx.report.formats import said, with_digest


def card(report: dict[str, Any]) -> dict[str, str]:
    """Label and text of each line, in order; the same on the terminal and on the page."""
    header, after = report["header"], report["header"]["after"]
    before = header["before"]
    excluded = "; ".join(f"{n:,} {reason}" for reason, n in header["excluded"].items()) or "none"
    contigs = header["contigs"]
    named = ", ".join(contigs[:4]) + (f" and {len(contigs) - 4} more" if len(contigs) > 4 else "")
    lines = {
        "model": said(after.get("model")),
        "checkpoint": said(after.get("checkpoint")),
        "step": said(after.get("step")) + (f" (before: {said(before.get('step'))})" if before else ""),
        "store": with_digest(after, "store"),
        "windows": with_digest(after, "windows"),
        "split": f"{said(after.get('split'))}: {header['windows']:,} on {named}",
        "context": f"{said(after.get('context'))} tokens, in chunks of {said(after.get('chunk'))}",
        "scored": f"{header['scored_bases']:,} of {header['window_bases']:,} bases",
        "excluded": excluded,
        "leakage": leakage(header["leakage"]),
        "machine": machine(header["machine"]),
        "created": said(after.get("created")),
        "command": said(after.get("command")),
    }
    return {label: text for label, text in lines.items() if text}


def leakage(found: dict[str, Any] | None) -> str:
    """The figure of the window table's audit in words; empty where nobody asked for it."""
    if not found:
        return ""
    if found["audited"] is None:
        return "not known"
    if not found["audited"]:
        return "not looked for"
    if found["share"] is None:
        return f"no {found['k']}-mer to look at"
    return f"{100 * found['share']:.3g} % of held-out {found['k']}-mers in training ({_limit(found)})"


def _limit(found: dict[str, Any]) -> str:
    limit = found["limit"]
    return "no limit" if limit is None else f"limit {100 * limit:.3g} %"


def machine(found: dict[str, Any] | None) -> str:
    """Hardware and versions in one line."""
    if not found:
        return ""
    kind, versions = found.get("machine") or {}, found.get("versions") or {}
    parts = [f"{kind.get('system', '')} {kind.get('arch', '')}".strip()]
    if kind.get("cpus"):
        parts.append(f"{kind['cpus']} CPUs")
    if kind.get("memory_bytes"):
        parts.append(f"{kind['memory_bytes'] / 2**30:.0f} GiB")
    if kind.get("device"):
        parts.append(str(kind["device"]))
    parts += [f"{name} {versions[name]}" for name in ("genoctx", "torch", "numpy") if name in versions]
    return ", ".join(part for part in parts if part)
