"""What Prometheus has kept of many hosts, read back over its HTTP API.

`read_range` asks any question; `reduced` the usual one, in the shape in which one host's own history answers.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gpulab.errors import GpulabError, RequestError

if TYPE_CHECKING:
    from gpulab.telemetry.series import Point

__all__ = ["Line", "PrometheusError", "read_range", "reduced", "without_login"]

MOST_POINTS = 11_000
"""Prometheus refuses a question whose answer has more points a line."""
_LEAST_STEP = 0.001
_MOST_BYTES = 128 * 2**20
_SCRAPES_COVER = 120.0
"""Seconds in which even a slow Prometheus has scraped once: it forgets what it has not seen for 5 minutes."""
_FINE_STEP = 60.0
"""Below it each point is the sample of its time; from it on what lies between two points is summed up."""
_METRICS = {
    "gpu_percent": ("avg", "gpulab_device_utilization_ratio", 100.0),
    "gpu_max": ("max", "gpulab_device_utilization_ratio", 100.0),
    "memory_used_bytes": ("avg", "gpulab_device_memory_used_bytes", 1.0),
    "memory_max_bytes": ("max", "gpulab_device_memory_used_bytes", 1.0),
    "power_watts": ("avg", "gpulab_device_power_watts", 1.0),
    "temperature_celsius": ("max", "gpulab_device_temperature_celsius", 1.0),
}


class PrometheusError(GpulabError):
    """Prometheus cannot be reached, or does not answer the question."""


class Line(NamedTuple):
    """One time series of an answer."""

    labels: dict[str, str]
    times: tuple[float, ...]
    """Seconds since the epoch, rising; a time for which nothing is known may be missing."""
    values: tuple[float | None, ...]
    """As many; None for what is no number."""


def read_range(
    url: str,
    query: str,
    since: float,
    until: float | None = None,
    step: float | None = None,
    *,
    timeout: float = 10.0,
) -> list[Line]:
    """Ask a Prometheus for what `query` was between two instants.

    Parameters
    ----------
    url
        Its address, for example http://prometheus:9090; a user and a password before the host's name
        are sent as basic authentication, and told in no message.
    query
        PromQL, or the name of a metric.
    since, until
        Seconds since the epoch; `until` None means now.
    step
        Seconds between two points, made longer where more than 11000 would come; None gives some 300.
    timeout
        Seconds that each step of the conversation may take.

    Returns
    -------
    The lines in Prometheus's order; none if it knows nothing of that name and time.

    Raises RequestError for an address or a range that makes no sense, PrometheusError for the rest.
    """
    until = time.time() if until is None else until
    if not (math.isfinite(since) and math.isfinite(until) and since <= until):
        raise RequestError(f"From {since} to {until} is no range of time; let it begin before it ends.")
    question = {
        "query": query,
        "start": f"{since:.3f}",
        "end": f"{until:.3f}",
        "step": f"{_step(until - since, step):.3f}",
    }
    return _lines(_ask(url, "api/v1/query_range", question, timeout), without_login(url))


def reduced(
    url: str,
    since: float,
    until: float | None = None,
    *,
    points: int = 300,
    hosts: Sequence[str] | None = None,
    timeout: float = 10.0,
) -> dict[str, dict[str, list[Point]]]:
    """The devices' series of all hosts, or of `hosts`: by host, then by UUID, as `series.reduced` has them.

    At most some `points` points a device; a gap, as where a host was not scraped, begins with an empty
    one. Empty if Prometheus has nothing of gpulab in that time. Raises as `read_range` does.
    """
    until = time.time() if until is None else until
    step = _step(until - since, max(1.0, (until - since) / max(1, points)))
    found: dict[tuple[str, str], dict[float, dict[str, float | None]]] = {}
    for field, (how, metric, factor) in _METRICS.items():
        for line in read_range(url, _over(how, metric, hosts, step), since, until, step, timeout=timeout):
            device = found.setdefault((line.labels.get("host", ""), line.labels.get("uuid", "")), {})
            for at, value in zip(line.times, line.values, strict=True):
                device.setdefault(at, {})[field] = None if value is None else value * factor
    by_host: dict[str, dict[str, list[Point]]] = {}
    for (host, uuid), rows in sorted(found.items()):
        by_host.setdefault(host, {})[uuid] = list(_points(rows, step))
    return by_host


def _points(rows: dict[float, dict[str, float | None]], step: float) -> Iterator[Point]:
    """In the order of time, each at the middle of its part, with an empty one where a gap begins."""
    from gpulab.telemetry.series import Point

    middle = 0.0 if step < _FINE_STEP else step / 2
    before: float | None = None
    for at in sorted(rows):
        if before is not None and at - before > 1.5 * step:
            yield Point(before + step - middle, *([None] * len(_METRICS)))
        yield Point(time=at - middle, **{name: rows[at].get(name) for name in _METRICS})  # type: ignore[arg-type]
        before = at


def without_login(url: str) -> str:
    """An address as it may be shown: less the user and the password in it."""
    return re.sub(r"^([^/]*//)?.*@", lambda found: found.group(1) or "", url.strip())


def _over(how: str, metric: str, hosts: Sequence[str] | None, step: float) -> str:
    """PromQL: one line for each host and device, whatever else the scrape has labelled it with."""
    which = ""
    if hosts is not None:
        pattern = "|".join(re.escape(host) for host in hosts)
        which = f"{{host=~{json.dumps(pattern, ensure_ascii=False)}}}"
    if step < _FINE_STEP:
        return f"{how} by (host, uuid) ({metric}{which})"
    window = f"{max(step, _SCRAPES_COVER) * 1000:.0f}ms"
    return f"{how} by (host, uuid) ({how}_over_time({metric}{which}[{window}]))"


def _step(span: float, wanted: float | None) -> float:
    """Seconds, in whole milliseconds and never so few that too many points come."""
    step = span / 300 if wanted is None else wanted
    if not (math.isfinite(step) and step >= 0):
        raise RequestError(f"{wanted!r} is no time between two points; write for example 15, in seconds.")
    step = max(step, span / (MOST_POINTS - 1), _LEAST_STEP)
    return math.ceil(step * 1000) / 1000


def _ask(url: str, path: str, question: dict[str, str], timeout: float) -> Any:
    shown = without_login(url)
    request = _request(url, path, question)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310 - checked by _request
            text = answer.read(_MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise PrometheusError(_refusal(shown, error)) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        told = " ".join(str(reason).split())[:300] or type(reason).__name__
        raise PrometheusError(
            f"Prometheus at {shown} cannot be reached ({told}); see that it runs, and correct the address."
        ) from None  # what is behind may quote the address with its password
    if len(text) > _MOST_BYTES:
        raise PrometheusError(f"The answer of {shown} is too large; ask for fewer points or a shorter time.")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise PrometheusError(_foreign(shown)) from None


def _request(url: str, path: str, question: dict[str, str]) -> urllib.request.Request:
    """Raises RequestError for what is no address of a web server; nothing else may be opened."""
    wrong = RequestError(
        f"{without_login(url)!r} is no address of a Prometheus; write for example http://prometheus:9090."
    )
    try:
        parts = urllib.parse.urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("http", "https") or not host or not url.isprintable() or " " in host:
        raise wrong
    place = f"[{host}]" if ":" in host else host
    netloc = place if port is None else f"{place}:{port}"
    address = f"{parts.scheme}://{netloc}{parts.path.rstrip('/')}/{path}?{urllib.parse.urlencode(question)}"
    request = urllib.request.Request(address, headers={"Accept": "application/json"})  # noqa: S310
    if parts.username is not None:
        login = ":".join(urllib.parse.unquote(part or "") for part in (parts.username, parts.password))
        token = base64.b64encode(login.encode()).decode("ascii")
        request.add_unredirected_header("Authorization", f"Basic {token}")  # never to where a redirect leads
    return request


def _refusal(shown: str, error: urllib.error.HTTPError) -> str:
    """What an answer of 4xx or 5xx means; Prometheus says the reason in JSON."""
    if error.code in (401, 403):
        return (
            f"Prometheus at {shown} asks for a login ({error.code}); "
            "write it into the address, as in http://user:password@host:9090."
        )
    try:
        told = str(json.loads(error.read(65536))["error"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, RecursionError):
        told = str(error.reason)
    told = " ".join(told.split())[:300]
    return f"Prometheus at {shown} refuses ({error.code}: {told}); correct the query or the address."


def _foreign(shown: str) -> str:
    return f"What answers at {shown} is no Prometheus; correct the address."


def _lines(answer: Any, shown: str) -> list[Line]:
    try:
        if answer["status"] != "success" or answer["data"]["resultType"] != "matrix":
            raise ValueError
        return [_line(entry) for entry in answer["data"]["result"]]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise PrometheusError(_foreign(shown)) from None


def _line(entry: dict[str, Any]) -> Line:
    labels = {str(name): str(value) for name, value in entry["metric"].items()}
    pairs = entry["values"]
    return Line(labels, tuple(float(at) for at, _ in pairs), tuple(_number(text) for _, text in pairs))


def _number(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None
