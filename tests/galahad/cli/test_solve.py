"""`galahad solve|status|report` as a user meets them; the model is a scripted server on this
machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from galahad.cli import app
from galahad.errors import RunLogError
from galahad.solve import log as runlog
from taliesin.errors import UsageError
from taliesin.host import console

PROGRAM = "```python\nprint(7)\n```"


class Script(ThreadingHTTPServer):
    """Answers every chat with 7, from request number `hold_from` on only once `hold` is set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked: list[str] = []
        self.seeds: list[int] = []
        self.hold = threading.Event()
        self.hold_from = sys.maxsize

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    server: Script

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        question = body["messages"][0]["content"]
        self.server.asked.append(question)
        self.server.seeds.append(body["seed"])
        if len(self.server.asked) >= self.server.hold_from:
            self.server.hold.wait(60)
        text = PROGRAM if question.startswith("Write a Python program") else "so \\boxed{7}"
        reply = {
            "choices": [{"message": {"content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 50, "completion_tokens": 9},
        }
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with suppress(OSError):  # the asker was killed, as some tests do
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Script]:
    script = Script()
    thread = threading.Thread(target=script.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield script
    script.hold.set()
    script.shutdown()
    thread.join()
    script.server_close()


@pytest.fixture
def problem_file(tmp_path: Path) -> Path:
    path = tmp_path / "suite.jsonl"
    rows = [
        {"id": f"p{i}", "problem": f"Find the {i}th number. It is odd.", "answer": 7 if i else 8}
        for i in range(4)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def options(problem_file: Path, server: Script, *more: str) -> list[str]:
    out = str(problem_file.parent / "run")
    return ["solve", str(problem_file), "--url", server.url, "--model", "m", "--out", out, *more]


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_a_run_is_solved_shown_and_reported(problem_file: Path, server: Script) -> None:
    code, out, err = invoke(*options(problem_file, server))
    assert code == 0
    assert [line.split()[:4] for line in out.splitlines()[1:]] == [
        ["p0", "7", "confident", "wrong"],
        *([f"p{i}", "7", "confident", "right"] for i in (1, 2, 3)),
    ]
    assert "3/4 = 75.0%" in err
    run = str(problem_file.parent / "run")
    code, out, _ = invoke("status", run)
    assert code == 0
    assert out.startswith("complete: 4 of 4 attempts")
    code, out, _ = invoke("report", run)
    assert code == 0
    assert "| confident | 3 | 1 | 0 |" in out
    assert "| p0 | 7 | 8 | wrong | confident |" in out


def test_the_log_holds_no_text_of_problems_or_models(problem_file: Path, server: Script) -> None:
    invoke(*options(problem_file, server, "--limit", "1"))
    log = (problem_file.parent / "run" / runlog.LOG).read_text()
    assert "odd" not in log
    assert "boxed" not in log
    assert "print" not in log
    [told] = runlog.transcripts(runlog.read(problem_file.parent / "run")).values()
    assert told.program == "print(7)\n"


def test_json_is_one_object_with_its_schema(problem_file: Path, server: Script) -> None:
    code, out, _ = invoke(*options(problem_file, server, "--route", "thought", "--json"))
    assert code == 0
    found = json.loads(out)
    assert found["schema"] == "galahad.solve/1"
    assert (found["accuracy"]["k"], found["attempts_done"], found["tokens_out"]) == (3, 4, 72)
    run = str(problem_file.parent / "run")
    for verb in ("status", "report"):
        code, out, _ = invoke(verb, run, "--json")
        assert code == 0
        assert json.loads(out)["schema"] == f"galahad.{verb}/1"


def test_k_attempts_have_k_seeds_and_a_majority(problem_file: Path, server: Script) -> None:
    code, _, _ = invoke(*options(problem_file, server, "--route", "thought", "--attempts", "3"))
    assert code == 0
    assert len(set(server.seeds)) == len(server.seeds) == 4 * 3 * 2
    _, out, _ = invoke("report", str(problem_file.parent / "run"))
    assert "maj@3" in out
    assert "temperature 0.7" in out


def test_an_existing_run_is_not_overwritten(problem_file: Path, server: Script) -> None:
    invoke(*options(problem_file, server, "--limit", "1", "--route", "thought"))
    with pytest.raises(UsageError, match="holds a run already"):
        invoke(*options(problem_file, server, "--limit", "1", "--route", "thought"))


def test_resume_with_other_options_is_refused(problem_file: Path, server: Script) -> None:
    invoke(*options(problem_file, server, "--limit", "1", "--route", "thought"))
    with pytest.raises(RunLogError, match="other inputs") as caught:
        invoke(
            *options(
                problem_file,
                server,
                "--limit",
                "1",
                "--route",
                "thought",
                "--seed",
                "5",
                "--resume",
            )
        )
    assert "settings.seed: 0 there, 5 now" in str(caught.value.got)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--route", "guess"],
        ["--attempts", "3", "--temperature", "0"],
        ["--id", "nobody"],
        ["--budget", "3"],
    ],
)
def test_wrong_options_make_no_run(problem_file: Path, server: Script, wrong: list[str]) -> None:
    with pytest.raises(UsageError):
        invoke(*options(problem_file, server, *wrong))
    assert not (problem_file.parent / "run").exists()


@pytest.mark.parametrize("verb", ["status", "report"])
def test_what_is_no_run_is_refused(tmp_path: Path, verb: str) -> None:
    with pytest.raises(RunLogError, match="no run there"):
        invoke(verb, str(tmp_path))


def start(
    problem_file: Path, server: Script, *more: str, stderr: int = subprocess.PIPE
) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "galahad",
        *options(problem_file, server, "--route", "thought", *more),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "TERM": "xterm",
        "COLUMNS": "120",
    }
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
    )


def wait_for(n_asked: int, server: Script, process: subprocess.Popen[str]) -> None:
    while len(server.asked) < n_asked:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def test_after_kill_9_resume_repeats_nothing_that_finished(
    problem_file: Path, server: Script
) -> None:
    folder = problem_file.parent / "run"
    server.hold_from = 4
    process = start(problem_file, server)
    wait_for(4, server, process)  # in the middle of the second attempt, its request unanswered
    process.kill()
    process.communicate()
    server.hold.set()
    done = runlog.read(folder).done
    assert done == {("p0", 0)}
    code, out, _ = invoke("status", str(folder))
    assert code == 4
    assert out.startswith(f"stopped: {len(done)} of 4 attempts")
    before = len(server.asked)
    code, _, err = invoke(*options(problem_file, server, "--route", "thought", "--resume"))
    assert code == 0
    assert f"{console.count(len(done), 'attempt')} already there" in err
    assert len(server.asked) - before == (4 - len(done)) * 2
    run = runlog.read(folder)
    assert [a.problem for a in run.attempts] == ["p0", "p1", "p2", "p3"]
    assert sum(a.tokens_out for a in run.attempts) == 4 * 2 * 9


def test_ctrl_c_once_finishes_the_attempt_and_twice_does_not(
    problem_file: Path, server: Script
) -> None:
    server.hold_from = 1
    process = start(problem_file, server)
    wait_for(1, server, process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    server.hold.set()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "stopping after this attempt" in err
    assert runlog.read(problem_file.parent / "run").done == {("p0", 0)}
    server.hold.clear()
    process = start(problem_file, server, "--resume")
    wait_for(3, server, process)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "stopping" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert runlog.read(problem_file.parent / "run").done == {("p0", 0)}


def test_a_terminal_sees_count_and_tokens_per_second(problem_file: Path, server: Script) -> None:
    reader, terminal = os.openpty()
    server.hold_from = 3
    process = start(problem_file, server, stderr=terminal)
    os.close(terminal)
    shown = ""
    try:
        while "1/4" not in shown or "tokens/s" not in shown:
            shown += os.read(reader, 4096).decode("utf-8", "replace")
    finally:
        process.kill()
        process.communicate()
        os.close(reader)
