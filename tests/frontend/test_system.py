"""The page System: what it looks at, that it waits for nothing, that it shows what it found."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from playwright.sync_api import expect

from radt.delivery.problems import EVERYTHING, MLFLOW, ProblemLog
from radt.errors import RadtError, StoreError
from radt.frontend.data import probe as probes
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.probe import COMMAND_LATE_S, Probe, ProbeResult, ask_radt
from radt.frontend.imports import ImportNews, MlflowImports
from radt.frontend.pages import system as system_page
from radt.frontend.pages.parts import template
from radt.importers.importing import ImportStatus
from radt.model import RunStatus
from radt.store.backend import StoreAddress
from tests.cluster.kit import make_spool
from tests.support.nvml import FakeNvml, mig_gpu, nvml, nvml_library

__all__ = ["nvml", "nvml_library"]

# Looking without waiting ---------------------------------------------------------------------


def test_nothing_is_looked_at_before_somebody_asks_and_not_more_often_than_it_may():
    looked = []
    probe = Probe("x", lambda: looked.append(1) or len(looked), 3600)
    assert looked == []
    assert probe.look(180).value == 1
    assert probe.look().value == 1
    assert looked == [1]


def test_what_hangs_holds_one_thread_and_nobody_else(wait_until):
    hang, looked = threading.Event(), []

    def read():
        looked.append(1)
        if len(looked) == 2:
            hang.wait()
        return len(looked)

    probe = Probe("hung", read, 0.0, late_s=1e-9)
    assert probe.look(180).value == 1
    wait_until(lambda: probe.look() and len(looked) == 2, "the second look")
    for _ in range(20):
        reading = probe.look(180)  # what is known needs no waiting for
        assert reading.value == 1
        assert reading.late_s > 0
    # Its own only: threads of other tests may end meanwhile.
    mine = [thread for thread in threading.enumerate() if thread.name == "system-hung"]
    assert (len(looked), len(mine)) == (2, 1)
    hang.set()
    wait_until(lambda: probe.look().value > 1, "the answer")


def test_what_fails_is_said_and_tried_again(caplog, wait_until):
    failures = iter([StoreError("away", "Wait"), ValueError("a secret detail")])
    reads = threading.Semaphore(1)

    def read():
        reads.acquire()  # each result stays until it has been seen
        error = next(failures, None)
        if error is not None:
            raise error
        return "there"

    probe = Probe("the thing", read, 0.0)
    known = probe.look(180)
    assert (known.value, known.error.message, known.error.remedy) == (None, "away", "Wait")
    with caplog.at_level(logging.ERROR):
        reads.release()
        wait_until(lambda: "ValueError" in str(probe.look().error), "the second")
        assert "secret" not in str(probe.look().error)
    assert "the thing" in caplog.text
    reads.release()
    wait_until(lambda: probe.look().value == "there", "the third")
    assert probe.look().error is None


# This machine and its commands -----------------------------------------------------------------


def test_commands_are_asked_in_processes_of_their_own(tmp_path, monkeypatch):
    checks = {
        check["subject"]: check for check in ask_radt("doctor", "--home", str(tmp_path))["checks"]
    }
    assert checks["radt"]["state"] == "good"
    assert checks["store"] == {
        "subject": "store",
        "state": "absent",
        "text": "none yet; the first run creates it",
        "remedy": "",
    }
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(RadtError, match="printed no JSON"):
        ask_radt("doctor")


def test_a_submission_whose_cluster_does_not_answer_says_why(tmp_path, monkeypatch):
    spool = make_spool(tmp_path, [["solo"], ["pair*2"]])
    spool.submitted(spool.intend(0, [0, 1]), "77")
    away = tmp_path / "slurm.conf"
    away.write_text(
        "ClusterName=away\nSlurmctldHost=localhost\nSlurmctldPort=1\nNodeName=n\n"
        "PartitionName=p Nodes=n\n"
    )
    monkeypatch.setenv("SLURM_CONF", str(away))
    cards = template("system.html")
    found = ask_radt("status", "--home", str(tmp_path))
    (file,) = found["files"]
    assert file["file"] == spool.submission.file
    assert file["submission"]["problem"] in cards.cluster(ProbeResult(found))
    spool.close()
    found = ask_radt("status", "--home", str(tmp_path))
    assert "Nothing is submitted." in cards.cluster(ProbeResult(found))


def test_jobs_that_run_and_wait_are_shown():
    running = {
        "nodes": "gpu-1",
        "label": "solo",
        "roles": ["run"],
        "job_id": "77_1",
        "attempt": 2,
        "running_s": 120.0,
    }
    waiting = {
        "label": "<b>",
        "roles": ["run"] * 2,
        "job_id": "77_2",
        "reason": "Resources",
        "waits_for": "a node with room for it",
        "starts": "2026-06-03T14:02:00",
    }
    one = {
        "id": "s1",
        "headline": "1 runs",
        "problem": "",
        "held": "no quota",
        "running": [running],
        "waiting": [waiting],
        "queued": {"Resources": 3},
    }
    files = [
        {"file": "/w/a.csv", "holder": None, "submission": one},
        {"file": "/w/b.csv", "error": "the folder is gone", "remedy": "Mount it"},
    ]
    html = template("system.html").cluster(ProbeResult({"files": files}))
    for words in (
        *("gpu-1", "77_1", "&lt;b&gt;", "a node with room for it", "2026-06-03 14:02:00"),
        *("Held: no quota", "and 2 jobs more", "by nobody", "The folder is gone", "Mount it."),
    ):
        assert words in html


def test_what_works_slowly_is_no_alert():
    html = str(template("system.html").checks(ProbeResult([], late_s=60.0)))
    assert "No answer for over 1:00; this is older." in html
    assert 'role="alert"' not in html
    probe = Probe("x", threading.Event().wait, 0.0, COMMAND_LATE_S)
    assert probe.look().late_s == 0


def test_texts_of_mps_and_mig_are_short_and_apart():
    macros = template("system.html")
    run = SimpleNamespace(run_id="abcdef0123456789", user="ada")
    assert macros.remarks(SimpleNamespace(mps=True, who=run)) == "MPS, run abcdef01"
    assert macros.remarks(SimpleNamespace(mps=False, who=run)) == "run abcdef01"
    uuid = "MIG-0a1b2c3d-4e5f-6789"
    assert macros.short([uuid, "0"]) == (
        f'<span title="{uuid}">MIG-0a1b2c3d…</span>, <span title="0">0</span>'
    )


def test_a_card_that_cannot_be_drawn_says_so_alone(caplog):
    html = system_page._card("cluster", ProbeResult({"files": [{}]}))
    assert "Drawing this failed: UndefinedError." in html
    assert "drawing the card cluster failed" in caplog.text


# The page ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Pages that look often."""
    monkeypatch.setattr(system_page, "INTERVAL_S", 0.3)
    monkeypatch.setattr(probes, "_SHARE", 0)
    for name in ("_DEVICES_S", "_CLUSTER_S", "_CHECKS_S"):
        monkeypatch.setattr(system_page, name, 0.3)


def card(watched, name):
    return watched.page.locator(f"#system-{name}")


def check(watched, subject):
    """The line of a check."""
    return (
        card(watched, "checks")
        .locator("li")
        .filter(has=watched.page.get_by_text(subject, exact=True))
    )


def test_every_card_has_something_to_say(demo, serve, watched, monkeypatch):
    uri = "http://ada:secret@mlflow.example:5000"
    workload_id = demo.workload("live", "now", [demo.run("a", "n", 2.0)])
    workload = CachedStore(demo.store).reader.workload(workload_id)
    demo.writer.put_workload(replace(workload, workload_id="e" * 32, tracking_uri=uri))
    run = CachedStore(demo.store).reader.runs(workload_id=workload_id)[0]
    new = {"run_id": "f" * 32, "workload_id": "e" * 32, "tracking_uri": uri}
    demo.writer.put_run(replace(run, **new))
    ProblemLog(demo.store, MLFLOW, uri).note(EVERYTHING, "no connection")
    watched.page.goto(f"{serve()}/system")
    expect(card(watched, "devices")).to_contain_text("No GPU")
    expect(card(watched, "cluster")).to_contain_text("Nothing is submitted.")
    expect(card(watched, "access")).to_contain_text("127.0.0.1")
    expect(check(watched, "store")).to_contain_text("radt.db, 2 runs")
    expect(check(watched, "collector")).to_contain_text("not running; the next run starts it")
    expect(check(watched, "uploads")).to_contain_text("no connection")
    assert "secret" not in watched.page.content()
    expect(watched.page.get_by_role("button", name="Log out")).to_have_count(0)
    expect(card(watched, "imports")).to_be_hidden()
    assert watched.errors == []


@pytest.mark.long
def test_a_table_keeps_the_focus_and_its_place_when_it_is_drawn_again(
    demo, serve, watched, monkeypatch
):
    running_s = iter(range(10**6))

    def status(command, *_):
        if command == "doctor":
            return {"checks": []}
        job = {"nodes": "n" * 400, "label": "solo", "roles": [], "job_id": "1", "attempt": 1}
        one = {"id": "s1", "headline": "", "problem": "", "held": "", "waiting": [], "queued": {}}
        one["running"] = [{**job, "running_s": next(running_s)}]
        return {"files": [{"file": "/w/a.csv", "holder": None, "submission": one}]}

    monkeypatch.setattr(system_page, "ask_radt", status)
    page = watched.page
    page.set_viewport_size({"width": 500, "height": 900})
    page.goto(f"{serve()}/system")
    region = page.get_by_role("region", name="Nodes of s1")
    expect(region.get_by_title("first heartbeat")).to_be_visible()
    region.focus()
    region.evaluate("one => { one.scrollLeft = 40; window.first = one; }")
    page.wait_for_function("() => !window.first.isConnected")
    expect(region).to_be_focused()
    assert region.evaluate("one => one.scrollLeft") == 40
    assert watched.errors == []


@pytest.mark.long
def test_it_is_looked_at_only_while_the_page_is(demo, serve, watched):
    demo.quickstart()
    asked = []
    watched.on("request", lambda request: asked.append(request.url))
    watched.page.goto(f"{serve()}/system")
    for _ in range(3):
        with watched.page.expect_request("**/system/data"):
            pass
    watched.page.get_by_role("link", name="Report").click()
    expect(watched.page.locator(".system")).to_have_count(0)
    asked.clear()
    for _ in range(3):  # the pulse goes on
        with watched.page.expect_request(lambda r: "revision" in (r.post_data or "")):
            pass
    assert not any("/system/data" in one for one in asked)


@pytest.mark.long
def test_where_nothing_is_recorded_the_machine_is_shown(serve, watched):
    watched.page.goto(f"{serve()}/system")
    expect(card(watched, "devices")).to_contain_text("CPUs")
    expect(check(watched, "store")).to_contain_text("the first run creates it")
    expect(check(watched, "store")).to_have_attribute("data-state", "absent")


def test_an_importing_process_that_ended_has_no_id(demo, wait_until):
    imports = MlflowImports("http://127.0.0.1:1", StoreAddress.of(demo.store))
    try:
        os.kill(wait_until(lambda: imports.pid, "its start"), signal.SIGKILL)
        wait_until(lambda: imports.pid is None, "its end")
    finally:
        imports.close()


def test_an_import_says_how_far_it_is():
    macros = template("system.html")
    status = ImportStatus(error="no <answer>", remedy="Start it")
    news = ImportNews("http://***@mlflow", status, 1)
    html = macros.imports(news, "14:02")
    for words in ("http://***@mlflow", "shown as imported before", "No &lt;answer&gt;.", "14:02"):
        assert words in html


def test_the_command_shows_gpus_to_who_has_the_token(demo, watched, nvml: FakeNvml):
    """The real process with a fake driver: the form, the cards of GPUs, log out."""
    # Pages ask for news every second while something runs, else every three.
    demo.workload("live", "now", [demo.run("a", "n", 4.0, status=RunStatus.RUNNING)])
    nvml.configure(
        "count 2", mig_gpu(0, mode=1), "gpu 1 55 80000 500 1000 250500 7000 61 1410 1593"
    )
    token = "a-token-of-enough-letters"
    interrupted = False
    process = subprocess.Popen(
        [sys.executable, "-m", "radt", "dashboard", "--port", "0", "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
        env={
            **nvml.environment(),
            "RADT_HOME": str(demo.store.parent),
            "RADT_DASHBOARD_TOKEN": token,
            "PYTHONUNBUFFERED": "1",
        },
    )
    try:
        url = next(line.strip() for line in process.stdout if line.strip().startswith("http://"))
        page, address = watched.page, url.partition("?")[0]
        page.goto(address)
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_have_text("Wrong token.")
        page.get_by_label("Token").fill(token)
        page.keyboard.press("Enter")
        page.get_by_role("link", name="System").click()
        expect(card(watched, "devices")).to_contain_text("GPU 0")
        expect(card(watched, "devices")).to_contain_text("55 %")
        expect(card(watched, "devices")).to_contain_text("MIGon")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Token")).to_be_visible()
        assert token not in url  # one's own is not printed
        page.goto(f"{address}?token={token}")
        expect(page.get_by_role("link", name="System")).to_be_visible()
        assert "token" not in page.url
        # As if logged out in another tab: this one is told.
        cookies = page.context.cookies()
        page.context.clear_cookies()
        expect(page.locator(".gone")).to_contain_text("no longer accepts this browser")
        page.context.add_cookies(cookies)
        page.get_by_role("button", name="Reload").click()
        expect(page.get_by_role("link", name="System")).to_be_visible()
        process.send_signal(signal.SIGINT)
        interrupted = True
        expect(page.locator(".gone")).to_contain_text("The dashboard does not answer.")
        expect(page.get_by_role("link", name="System")).to_be_visible()
    finally:
        if not interrupted:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=180)
    assert process.returncode == 0
