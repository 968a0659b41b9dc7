"""The machine and its leases as Prometheus metrics: gpulab_* in base units, absent where unknown.

It reads the sampler's record and the lease directory, never the driver, so a scrape costs milliseconds
and a driver that hangs stops none. No process ids, no notebooks; logins only as the rule `names` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from gpulab.config import Settings, host_name
from gpulab.hardware import record
from gpulab.hardware.devices import Snapshot
from gpulab.telemetry.exporting import dcgm, families, holdings
from gpulab.telemetry.exporting.facts import Facts, Labels, labels_of, look

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import CollectorRegistry

__all__ = ["Collector", "registry", "render"]


class Collector:
    """What prometheus_client asks for the metrics at each scrape."""

    def __init__(
        self,
        settings: Settings,
        *,
        newest: Callable[[], Snapshot | None] | None = None,
        host: str | None = None,
        dcgm: str | None = None,
    ) -> None:
        """`newest` gives the newest snapshot however old, by default that of the sampler's record.

        `host` is told instead of the machine's own name; `dcgm`, if given, is the label by which the
        names of dcgm-exporter, then offered too, call it: hostname or Hostname.
        """
        self._settings = settings
        self._newest = newest or (lambda: record.latest(settings))
        self._host = host or host_name()
        self._dcgm = dcgm
        self._known: dict[str, Labels] = {}

    def collect(self) -> Iterator[Metric]:
        facts = look(self._settings, self._newest, self._host)
        self._known = _named(facts, self._known)
        yield from _once(families.machine(facts))
        yield from _once(families.devices(facts, self._settings.drained))
        yield from _once(holdings.claims(facts, self._known, self._settings))
        if self._dcgm is not None:
            yield from _once(dcgm.families(facts, self._dcgm))


def registry(collector: Collector) -> CollectorRegistry:
    """A registry with our metrics alone: what the exporter's own process costs is none of them."""
    from prometheus_client.registry import CollectorRegistry

    ours = CollectorRegistry(auto_describe=False)
    ours.register(collector)
    return ours


def render(metrics: CollectorRegistry, accept: str | None) -> tuple[bytes, str]:
    """The answer to a scrape and its content type: OpenMetrics where the client wants it, else text."""
    from prometheus_client.exposition import choose_encoder

    encoder, content_type = choose_encoder(accept or "")
    return encoder(metrics), content_type


def _named(facts: Facts, before: Mapping[str, Labels]) -> dict[str, Labels]:
    """How the devices are called by UUID: as last seen, while the driver lists none."""
    if facts.fresh is None or not facts.fresh.devices:
        return dict(before)
    return {device.uuid: labels_of(device, facts.host) for device in facts.fresh.devices if device.uuid}


def _once(metrics: Iterable[Metric]) -> Iterator[Metric]:
    """Each series once, whatever the record says: a second one would make the scrape doubtful."""
    for metric in metrics:
        seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
        kept = []
        for sample in metric.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            if key not in seen:
                seen.add(key)
                kept.append(sample)
        metric.samples = kept
        yield metric
