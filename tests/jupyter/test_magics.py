"""`%gpu` in a real kernel."""

from __future__ import annotations

import pytest


@pytest.fixture
def session(place, start):
    """A fresh GPU kernel that has said its first message."""
    with place.talk(start()) as talking:
        talking.run("1")
        yield talking


def test_gpu_shows_what_the_kernel_has_and_why_and_who_else_is_there(place, start, session):
    place.spec("share", memory="4GiB")
    start("share", env=_with_notebook("other.ipynb"))
    shown = session.run("%gpu").splitlines()
    lease = next(lease for lease in place.live() if lease.mode == "exclusive")
    assert shown[0] == (
        f"This kernel has GPU 0, Tesla T4 (simulated), {lease.gpus[0][:12]}… (exclusive), lease {lease.id}."
    )
    assert shown[1].startswith("Why this one: free, 0 % busy, ")
    assert shown[2].split() == ["GPU", "device", "UUID", "busy", "memory", "in", "use", "who"]
    assert shown[3].endswith("this kernel, as cuda:0")
    assert any("4.0 GiB leased by " in line and "(other.ipynb)" in line for line in shown[4:7])
    assert sum(line.endswith("free") for line in shown) == 2
    assert "leases of this account only; simulated machine, no real GPU." in shown[-1]


def _with_notebook(name: str) -> dict[str, str]:
    from gpulab.config import inherited

    return {**inherited(), "JPY_SESSION_NAME": name}


def test_gpu_shows_a_table_to_a_browser_and_text_to_everything_else(session):
    (shown,) = [message for message in session.messages("%gpu") if message["kind"] == "display_data"]
    assert "this kernel, as cuda:0" in shown["data"]["text/plain"]
    assert shown["data"]["text/html"].count("<tr>") == 5
    assert "color" not in shown["data"]["text/html"]


def test_names_from_outside_cannot_put_markup_into_the_notebook(place, start, monkeypatch):
    machine = place.scenario(devices=[{"profile": "t4", "name": "<img src=x>"}])
    monkeypatch.setenv("GPULAB_SIMULATE", machine)
    with place.talk(start()) as session:
        (shown,) = [message for message in session.messages("%gpu") if message["kind"] == "display_data"]
    assert "&lt;img src=x&gt;" in shown["data"]["text/html"]
    assert "<img" not in shown["data"]["text/html"]


def test_a_process_without_a_lease_is_named(place, start, monkeypatch):
    machine = place.scenario(
        devices=[{"profile": "t4", "count": 2}], processes=[{"gpu": 0, "pid": 1, "memory": "2GiB"}]
    )
    monkeypatch.setenv("GPULAB_SIMULATE", machine)
    with place.talk(start()) as session:
        shown = session.run("%gpu")
        assert "This kernel has GPU 1" in shown
        assert "(1 of " in shown
        assert ") without a lease" in shown


def test_release_gives_the_gpu_back_and_acquire_takes_one_again(place, session):
    before = place.lease()
    assert f"lease {before.id} is given back" in session.run("%gpu release")
    assert place.live() == ()
    assert session.mask() == ""
    assert "no GPU to give back" in session.run("%gpu release")
    assert "This kernel has no GPU: it holds no lease" in session.run("%gpu")
    taken = session.run("%gpu acquire --memory 4GiB")
    assert taken.startswith("gpulab: 4.0 GiB of Tesla T4 (simulated), GPU-")
    assert session.mask() == place.lease().gpus[0]
    assert place.lease().kernel_id is not None
    assert "4.0 GiB of GPU" in session.run("%gpu")


def test_a_second_acquire_is_one_sentence_on_standard_error(session):
    (message,) = [m for m in session.messages("%gpu acquire") if m["kind"] == "stream"]
    assert message["name"] == "stderr"
    assert "already holds lease" in message["text"]
    assert message["text"].count("\n") == 1


def test_a_kernel_without_gpu_can_take_one_later(place, start):
    place.spec("nine", gpus=9)
    with place.talk(start("nine")) as session:
        session.run("1")
        assert "This kernel has no GPU: 9 GPUs were asked for" in session.run("%gpu")
        taken = session.run("%gpu acquire --gpus 2 --wait 1s")
        first, second = (f"{uuid[:12]}… (Tesla T4 (simulated))" for uuid in place.lease().gpus)
        assert taken == f"gpulab: {first} and {second} are yours (leases of this account only).\n"
        assert session.mask() == ",".join(place.lease().gpus)
        assert "this kernel, as cuda:1" in session.run("%gpu")


def test_after_a_reload_a_lease_taken_in_a_cell_can_still_be_given_back(place, session):
    session.run("%gpu release")
    session.run("%gpu acquire")
    assert session.run("%reload_ext gpulab") == ""
    assert "is given back" in session.run("%gpu release")
    assert place.live() == ()


def test_without_any_gpu_nothing_is_said_of_figures(place, start, monkeypatch):
    monkeypatch.setenv(
        "GPULAB_SIMULATE",
        place.scenario(devices=[{"profile": "t4"}], faults=[{"call": "nvmlInit*", "code": 9}]),
    )
    with place.talk(start()) as session:
        session.run("1")
        shown = session.run("%gpu")
        assert "Figures" not in shown
        assert shown.splitlines()[-1].startswith("Leases of this account only")


def test_wrong_usage_is_one_sentence_without_a_traceback(session):
    cases = {
        "%gpu take": "%gpu has no 'take'; there are %gpu, %gpu acquire, wait, explain, release, ",
        "%gpu acquire --gpus two": "%gpu: argument --gpus: invalid int value: 'two'; %gpu help",
        "%gpu acquire 'x": "%gpu: No closing quotation; close what was opened.",
        "%gpu release now": "%gpu: unrecognized arguments: now; %gpu help lists what there is.",
    }
    for line, sentence in cases.items():
        shown = session.messages(line)
        text = "".join(message.get("text", "") for message in shown)
        assert text.startswith(f"UsageError: {sentence}")
        assert "Traceback" not in text


def test_what_cannot_be_had_is_one_sentence_and_the_notebook_goes_on(session):
    cases = {
        "%gpu acquire --memory 8Gigs": "gpulab: '8Gigs' is not a size; write for example 8GiB.",
        "%gpu acquire --policy luckiest": "gpulab: There is no policy 'luckiest'; choose idlest, pack, ",
        "%gpu acquire --gpus 9": "gpulab: 9 GPUs were asked for and this machine has 4 to hand out",
    }
    session.run("%gpu release")
    for line, sentence in cases.items():
        shown = session.run(f"{line}\nprint('and on')")
        assert shown.startswith(sentence)
        assert shown.endswith("and on\n")


def test_a_comment_after_the_magic_is_no_argument(session):
    assert session.run("%gpu        # what have I got?").startswith("This kernel has GPU ")


def test_help_lists_every_command(session):
    shown = session.run("%gpu help")
    for command in (
        *("%gpu acquire", "%gpu wait", "%gpu explain", "%gpu release", "%gpu limits"),
        *("--memory SIZE", "--priority NAME", "--wait SECONDS"),
    ):
        assert command in shown


def test_limits_shows_every_framework_and_what_is_in_force(place, start):
    place.spec("share", memory="4GiB")
    with place.talk(start("share")) as session:
        session.run("1")
        shown = session.run("%gpu limits")
        for framework in ("PyTorch", "TensorFlow", "JAX", "CuPy"):
            assert framework in shown
        assert "4.0 GiB" in shown
