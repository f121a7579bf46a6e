"""Programs whose use of the machine the kernel accounts for, apart from radt.

`ACCOUNT` starts a script, waits for all that is left of it and writes down the kernel's accounts
of it and of itself. `LOAD` is a command that works, reads and writes as much as it is asked to.
"""

ACCOUNT = """\
import ctypes, json, os, resource, sys

out, *command = sys.argv[1:]
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
os.posix_spawn(sys.executable, [sys.executable, *command], os.environ)
try:
    while True:
        assert os.wait()[1] == 0
except ChildProcessError:
    pass
counted = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
io = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
account = {
    "cpu_time_s": sum(one.ru_utime + one.ru_stime for one in counted),
    "rss_peak_bytes": max(one.ru_maxrss for one in counted) * 1024,
    "io_read_bytes": int(io["rchar"]),
    "io_written_bytes": int(io["wchar"]),
    "page_faults_minor": sum(one.ru_minflt for one in counted),
    "context_switches_voluntary": sum(one.ru_nvcsw for one in counted),
}
with open(out, "w") as file:
    json.dump(account, file)
os._exit(0)
"""

LOAD = """\
import os, resource, subprocess, sys, time

kind, seconds = sys.argv[1], float(sys.argv[2])


def work(seconds):
    # Of CPU time, half of the time.
    end = time.process_time() + seconds
    while time.process_time() < end:
        pause = time.process_time() + 0.02
        while time.process_time() < pause:
            pass
        time.sleep(0.02)


if kind == "cpu":
    work(seconds)
elif kind == "memory":
    block = b"x" * 150_000_000
    work(seconds)
elif kind == "files":
    for _ in range(max(1, round(seconds))):
        with open(f"data-{os.getpid()}", "wb") as file:
            for _ in range(40):
                file.write(b"x" * 1_000_000)
        with open(f"data-{os.getpid()}", "rb") as file:
            while file.read(1_000_000):
                pass
        os.unlink(f"data-{os.getpid()}")
elif kind == "children":
    own = [sys.executable, __file__, "cpu", str(seconds / 3)]
    for child in [subprocess.Popen(own) for _ in range(3)]:
        assert child.wait() == 0
elif kind == "exec":
    work(seconds / 2)
    os.execv(sys.executable, [sys.executable, __file__, "cpu", str(seconds / 2)])
elif kind == "daemon":
    # Nobody of the load waits for it: it is handed to whoever reaps.
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            work(seconds)
        os._exit(0)
    os.wait()
"""
