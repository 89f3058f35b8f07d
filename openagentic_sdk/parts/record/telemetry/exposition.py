"""Metrics in the Prometheus text exposition format 0.0.4."""

from __future__ import annotations

MetricLabels = tuple[tuple[str, str], ...]
# Keyed by name, kind and help text.
Families = dict[tuple[str, str, str], dict[MetricLabels, float]]


def to_exposition(families: Families) -> str:
    """Format these metric families."""
    lines: list[str] = []
    for (name, kind, text), samples in families.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        for labels, value in samples.items():
            inside = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels)
            lines.append(f"{name}{f'{{{inside}}}' if inside else ''} {value:.10g}")
    return "".join(f"{line}\n" for line in lines)


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
