"""The page System: what it looks at, that it waits for nothing, that it shows what it found."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from playwright.sync_api import expect

from radt.collector.client import CollectorClient
from radt.collector.protocol import socket_path
from radt.collector.start import guardian_lock, worker_lock
from radt.delivery.problems import EVERYTHING, ProblemLog, problem_file
from radt.errors import CollectorError, RadtError, StoreError
from radt.frontend.data import machine as probes
from radt.frontend.data import store_facts as system
from radt.frontend.data.machine import (
    Collector,
    CollectorWatch,
    DevicesWatch,
    NoCollector,
    Probe,
    Reading,
    read_listeners,
)
from radt.frontend.data.source import Source
from radt.frontend.data.store_facts import read_activity, read_backlogs, read_facts, read_points
from radt.frontend.data.submissions import read_submissions
from radt.frontend.pages import system as system_page
from radt.frontend.pages.system_cluster import cluster_card, waits_for
from radt.model import RunStatus
from radt.store.backend import StoreAddress
from radt.store.records import LedgerRecord
from tests.cluster.kit import make_spool
from tests.frontend.conftest import CPU, Demo
from tests.process.test_recorded_pages import texts
from tests.support import servers
from tests.support.nvml import FakeNvml, mig_gpu, nvml, nvml_library

__all__ = ["nvml", "nvml_library"]

SECOND_NS = 1_000_000_000


# Looking without waiting ---------------------------------------------------------------------


def test_nothing_is_looked_at_before_somebody_asks_and_not_more_often_than_it_may():
    looked = []
    probe = Probe("x", lambda: looked.append(1) or len(looked), 3600)
    assert looked == []
    assert probe.look(180).value == 1
    assert probe.look().value == 1
    assert looked == [1]


def test_what_hangs_holds_one_thread_and_nobody_else(monkeypatch, wait_until):
    monkeypatch.setattr(probes, "LATE_S", 0.0)
    hang, looked = threading.Event(), []

    def read():
        looked.append(1)
        if len(looked) == 2:
            hang.wait()
        return len(looked)

    probe = Probe("hung", read, 0.0)
    assert probe.look(180).value == 1
    wait_until(lambda: probe.look() and len(looked) == 2, "the second look")
    for _ in range(20):
        reading = probe.look(180)  # what is known needs no waiting for
        assert (reading.value, reading.is_late) == (1, True)
    # Its own only: threads of other tests may end meanwhile.
    mine = [thread for thread in threading.enumerate() if thread.name == "system-hung"]
    assert (len(looked), len(mine)) == (2, 1)
    hang.set()
    wait_until(lambda: probe.look().value > 1, "the answer")


def test_what_fails_is_said_and_tried_again(caplog, wait_until):
    failures = iter([StoreError("away", "Wait"), ValueError("a secret detail")])

    def read():
        error = next(failures, None)
        if error is not None:
            raise error
        return "there"

    probe = Probe("the thing", read, 0.0)
    known = probe.look(180)
    assert (known.value, known.error.message, known.error.remedy) == (None, "away", "Wait")
    with caplog.at_level(logging.ERROR):
        wait_until(lambda: "ValueError" in str(probe.look().error), "the second")
        assert "secret" not in str(probe.look().error)
    assert "the thing" in caplog.text
    wait_until(lambda: probe.look().value == "there", "the third")
    assert probe.look().error is None


# The store -----------------------------------------------------------------------------------


def test_a_store_in_figures(demo, source):
    demo.quickstart()
    facts = read_facts(source)
    assert (facts.experiments, facts.workloads, facts.runs, facts.running) == (1, 3, 6, 0)
    assert facts.engine.startswith("SQLite ")
    assert facts.schema_version == facts.newest_schema
    assert facts.size_bytes >= demo.store.stat().st_size
    assert facts.free_bytes > 0
    with source.reader as reader:
        counted = sum(sum(reader.point_counts(one).values()) for one in demo.run_ids.values())
        assert read_points(source) == counted > 0


def test_what_runs_and_how_far_behind_its_machine_is(demo, source):
    demo.quickstart()
    demo.now_ns = time.time_ns() - 30 * SECOND_NS
    now = demo.run("a", "cnn", 2.0, status=RunStatus.RUNNING, epochs=2)
    demo.workload("live", "now", [now])
    newest_ns = time.time_ns() - 3 * SECOND_NS
    demo.append(now.run_id, newest_ns, CPU, np.array([0.0]), [1.0])
    found = read_activity(source)
    assert [run.run_id for run in found.running] == [now.run_id]
    assert found.live
    (machine,) = found.machines
    assert (machine.host, machine.runs, machine.running) == ("bench-1", 7, 1)
    assert machine.newest_ns == newest_ns


def test_sampling_of_what_runs_else_of_the_last_runs(demo, source):
    demo.quickstart()
    found = read_activity(source)
    assert (found.live, found.sampled_runs, found.running) == (False, 6, [])
    (top,) = found.sampling
    assert (top.listener, top.runs, top.missed) == ("top", 6, 18)
    now = demo.run("a", "cnn", 2.0, status=RunStatus.RUNNING)
    demo.workload("live", "now", [now])
    late = LedgerRecord(
        now.run_id, "top", 1.0, 10, 9, 1, 9_000_000, "running", "", 5_000_000, 18_000, 7_000
    )
    demo.writer.put_ledger(late)
    (top,) = read_activity(source).sampling
    assert (top.expected, top.received, top.missed) == (10, 9, 1)
    assert (top.sampling_max_ns, top.late_ns, top.late_max_ns) == (5_000_000, 18_000, 7_000)


def test_an_empty_store_and_none(store_path, source):
    with pytest.raises(StoreError):
        read_facts(source)
    Demo(store_path).writer.close()
    assert read_facts(source).runs == 0
    assert read_points(source) == 0
    assert read_activity(source).machines == []


def test_a_team_s_store(database):
    for host in ("bench-1", "bench-2"):
        demo = Demo(database, host)
        demo.quickstart()
        demo.writer.close()
    source = Source(database)
    facts = read_facts(source)
    assert facts.engine.startswith("Postgres ")
    assert facts.size_bytes > 100_000
    assert facts.free_bytes is None
    assert facts.user
    assert facts.runs == 12
    assert [one.host for one in read_activity(source).machines] == ["bench-1", "bench-2"]
    assert read_points(source) > 0
    source.close()


# What waits ----------------------------------------------------------------------------------


def test_what_waits_for_mlflow_is_said_with_the_reason(demo):
    uri = "http://ada:secret@mlflow.example:5000"
    demo.quickstart()
    reader = Source(demo.store).reader
    run = reader.run(demo.run_ids["solo a"])
    workload = reader.workload(run.workload_id)
    new = {"run_id": "f" * 32, "workload_id": "e" * 32, "tracking_uri": uri}
    demo.writer.put_workload(
        replace(workload, workload_id="e" * 32, tracking_uri=uri, status=RunStatus.FINISHED)
    )
    demo.writer.put_run(replace(run, **new))
    ProblemLog(problem_file(demo.store, uri), uri).note(EVERYTHING, "no connection")
    found = read_backlogs(demo.store.parent)
    (one,) = found.waiting
    assert (one.ended, one.running, one.problem) == (1, 0, "no connection")
    assert "secret" not in one.place


def test_a_folder_without_a_store_has_nothing_waiting(tmp_path):
    assert not read_backlogs(tmp_path).exists
    assert not read_backlogs(None).exists


# This machine --------------------------------------------------------------------------------


@pytest.fixture
def collector():
    """A real one, gone after the test."""
    client = CollectorClient.connect(timeout_s=180)
    yield client
    client.close()
    for lock in (guardian_lock(), worker_lock()):
        if (pid := lock.holder()) is not None:
            with suppress(ProcessLookupError):  # it ends with its guardian
                os.kill(pid, signal.SIGKILL)
        lock.close()


def test_no_collector_is_how_it_is_while_nothing_is_recorded():
    assert CollectorWatch().read() == NoCollector()


def test_a_collector_says_what_it_costs(collector, monkeypatch):
    monkeypatch.setattr(probes, "_CONNECT_S", 180.0)  # a busy machine may take this long
    watch = CollectorWatch()
    first = watch.read()
    assert isinstance(first, Collector)
    assert first.status.pid == worker_lock().holder()
    assert first.cores >= 0
    assert watch.read().cores >= 0
    assert first.status.runs == ()


def test_a_collector_that_does_not_answer_is_no_missing_one(wait_until):
    """Its lock is held, and nobody listens."""
    code = (
        "import sys; from radt.collector.start import worker_lock; "
        "lock = worker_lock(); lock.acquire(); print('up', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "up\n"
        assert not socket_path().exists()
        with pytest.raises(CollectorError, match="is running but does not answer"):
            CollectorWatch().read()
        process.kill()


def test_devices_without_a_driver_say_so():
    found = DevicesWatch().read()
    assert found.overview.gpus == ()
    assert found.overview.no_gpu_reason or found.overview.gpu_failure
    assert 0 <= found.cpu_busy <= 1


def test_listeners_are_asked_in_a_process_of_their_own(monkeypatch):
    found = {one.name: one for one in read_listeners()}
    assert found["top"].works
    assert found["top"].by_default
    assert found["top"].series > 5
    assert not found["smi"].works
    assert found["smi"].reason
    assert found["torchprof"].is_profiler
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(RadtError, match="printed no JSON"):
        read_listeners()


def test_a_submission_whose_cluster_does_not_answer_says_why(tmp_path, monkeypatch):
    spool = make_spool(tmp_path, [["solo"], ["pair*2"]])
    spool.submitted(spool.intend(0, [0, 1]), "77")
    away = tmp_path / "slurm.conf"
    away.write_text(
        "ClusterName=away\nSlurmctldHost=localhost\nSlurmctldPort=1\nNodeName=n\n"
        "PartitionName=p Nodes=n\n"
    )
    monkeypatch.setenv("SLURM_CONF", str(away))
    (found,) = read_submissions(tmp_path)
    assert found.file == spool.submission.file
    assert found.problem
    assert found.problem in texts(cluster_card(Reading([found])))
    spool.close()
    assert read_submissions(tmp_path) == []
    assert "Nothing is submitted." in texts(cluster_card(Reading([])))


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "a node with room for it"),
        ("Priority", "jobs before it in the queue"),
        ("QOSMaxJobsPerUserLimit", "a limit is reached"),
        ("ReqNodeNotAvail, UnavailableNodes:node1", "down, drained or reserved"),
        ("SomethingNew", "–"),
    ],
)
def test_what_a_job_waits_for_is_said_in_words(reason, words):
    assert words in waits_for(reason)


# The page ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Pages that look often."""
    monkeypatch.setattr(system_page, "INTERVAL_MS", 400)
    monkeypatch.setattr(system, "_NOW_S", 0.3)


def card(watched, name):
    return watched.page.locator(f"#system-{name}")


def test_every_card_has_something_to_say(demo, serve, watched):
    demo.quickstart()
    running = demo.run("a", "cnn-small", 4.0, status=RunStatus.RUNNING)
    demo.workload("live", "now", [running])
    watched.page.goto(f"{serve()}/system")
    expect(card(watched, "store")).to_contain_text("7 in 4 workloads, 2 experiments")
    expect(card(watched, "collector")).to_have_text("Not running. The next run starts it.")
    expect(card(watched, "devices")).to_contain_text("No GPU")
    expect(card(watched, "backlog")).to_contain_text("is waiting to be uploaded")
    expect(card(watched, "sampling")).to_contain_text("Covers 1 run in progress.")
    expect(card(watched, "machines")).to_contain_text("bench-1")
    expect(card(watched, "cluster")).to_contain_text("Nothing is submitted.")
    expect(card(watched, "about")).to_contain_text("127.0.0.1")
    expect(card(watched, "listeners")).to_contain_text("available")
    expect(watched.page.get_by_role("button", name="Log out")).to_have_count(0)
    link = card(watched, "running").get_by_role("link", name="live / now")
    expect(link).to_be_visible()

    demo.writer.end_run(running.run_id, RunStatus.FINISHED, running_ends(demo, running), 0)
    expect(card(watched, "running")).to_have_text("No runs in progress.")
    assert watched.errors == []


def running_ends(demo, run):
    return demo.origin_ns(run.run_id) + 60 * SECOND_NS


def test_a_run_leads_to_its_workload(demo, serve, watched):
    workload_id = demo.workload("live", "now", [demo.run("a", "n", 4.0, status=RunStatus.RUNNING)])
    watched.page.goto(f"{serve()}/system?q=kept")
    card(watched, "running").get_by_role("link", name="live / now").click()
    watched.page.wait_for_url("**/workload?*")
    assert f"w={workload_id[:12]}" in watched.page.url
    assert "q=kept" in watched.page.url


def test_it_is_looked_at_only_while_the_page_is(demo, serve, watched):
    demo.quickstart()
    asked = []
    watched.on(
        "request",
        lambda request: (
            asked.append(request.post_data or "") if "_dash-update" in request.url else 0
        ),
    )
    watched.page.goto(f"{serve()}/system")
    with watched.page.expect_request(lambda r: "system-known" in (r.post_data or "")):
        pass
    watched.page.get_by_role("link", name="Report").click()
    expect(watched.page.locator(".system")).to_have_count(0)
    asked.clear()
    for _ in range(3):  # the pulse goes on
        with watched.page.expect_request(lambda r: "revision" in (r.post_data or "")):
            pass
    assert not any("system-known" in one for one in asked)


def test_where_nothing_is_recorded_the_machine_is_shown(serve, watched):
    watched.page.goto(f"{serve()}/system")
    # That is nothing wrong.
    expect(card(watched, "store").locator(".system-quiet")).to_contain_text("No runs")
    expect(card(watched, "store").locator(".system-trouble")).to_have_count(0)
    expect(card(watched, "store")).to_contain_text("radt train.py")
    expect(card(watched, "devices")).to_contain_text("CPUs")


@pytest.mark.long
def test_while_the_database_is_away_the_rest_stays_and_it_comes_back(serve, watched):
    with servers.postgres_cluster() as postgres, servers.database_of(postgres) as uri:
        demo = Demo(uri)
        demo.quickstart()
        demo.writer.close()
        watched.page.goto(f"{serve(store=uri)}/system")
        expect(card(watched, "store")).to_contain_text("6 in 3 workloads")
        postgres.kill()
        trouble = card(watched, "store").locator(".system-trouble")
        expect(trouble).to_contain_text("cannot be reached")
        expect(watched.page.locator("#outage")).to_be_visible()
        expect(card(watched, "devices")).to_contain_text("CPUs")
        assert StoreAddress.of(uri).uri not in watched.page.content()
        postgres.start()
        expect(card(watched, "store")).to_contain_text("6 in 3 workloads")
        expect(trouble).to_have_count(0)


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
        page.goto(url)
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
