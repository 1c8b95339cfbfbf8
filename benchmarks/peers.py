"""The same work by each peer: a block's state stored by one process and used by another, compared
with what a live run computes.

    python benchmarks/peers.py --json benchmarks/results/peers.json

A block of 2,048 and one of 1,500 tokens, a query of 6 tokens, 16 greedy tokens. *Live* is the
peer's own engine with the block, then the query, in one process and without a disk; it is what a
restored state must equal. *Fresh* is block and query as one prompt.
Before each restore the second process computes a decoy, so that a restore that does nothing cannot
pass. What is compared: all logits of each step where the peer runs in Python, the 64 best
log-probabilities with all digits where it is an HTTP server. Seconds are from the request to the
first token, restore included, loading the model not; of several restores the table has the
quickest, as other programs can only add to it.

Peers: taliesin; llama-cpp-python's `save_state`, pickled; llama-server's slot files (`make server`
first); stillwarm and hearth-llm, which are installed into a virtual environment of their own that
goes with the run, or `--venv`. One that cannot be installed or run has a row that says why. Rows
are kept in the JSON file and replaced when they are measured again, so that a part can be repeated
with `--peers`, `--models` and `--tokens`; the table on stdout is of all rows.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import json
import operator
import os
import pickle
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from taliesin.engine import certificate, llama
from taliesin.engine.embedded import Engine
from taliesin.engine.save import save_tokens
from taliesin.errors import ToolkitError
from taliesin.host import console, machine
from taliesin.models import resolve as models
from taliesin.server import process as server
from taliesin.server.client import N_PROBS, Client
from taliesin.store.library import Library

STEPS = 16
N_QUERY = 6
N_DECOY = 160
N_CTX = 4096
N_THREADS = 2
PACKAGES = {"stillwarm": "stillwarm==0.1.1", "hearth-llm": "hearth-llm==0.1.1"}


@dataclass(frozen=True, eq=False)
class Case:
    """One model and block length. Texts tokenise to exactly the ids; `scratch` is a folder of the
    case, shared by its peers.
    """

    model: str
    path: str
    tokens: list[int]
    query: list[int]
    decoy: list[int]
    text: str
    query_text: str
    decoy_text: str
    repeats: int
    scratch: str


@dataclass
class Answer:
    """16 greedy tokens: the ids, one digest for each step of what the peer lets one see, how much
    was reused, and the seconds to the first token."""

    tokens: list[int]
    digests: list[str]
    seconds: float
    reused: int = 0


@dataclass
class Found:
    """What one peer did: its references, and one answer for each restore."""

    live: Answer
    fresh_seconds: float
    restored: list[Answer]
    stored_bytes: int


Peer = Callable[[Case], Found]


# -- cases -----------------------------------------------------------------------------------------


def case_of(name: str, n_tokens: int, repeats: int, scratch: Path) -> Case:
    """Seeded common words, each one token, so that every peer is given the same ids whether it
    takes text or ids.
    """
    path = models.resolve(name)
    rng = np.random.default_rng(n_tokens)
    with llama.Model(path, vocab_only=True) as model:
        listed = (
            (models.data_dir() / "router" / "function_words.txt")
            .read_text(encoding="utf-8")
            .split()
        )
        words = [w for w in listed if len(model.tokenize(f" {w}", special=False)) == 1]

        def text(n: int) -> str:
            return "".join(f" {w}" for w in rng.choice(words, n))

        def ids(text: str, bos: bool = True) -> list[int]:
            return [
                *([model.bos] if bos and model.adds_bos else []),
                *model.tokenize(text, special=False),
            ]

        block, query, decoy = text(n_tokens - model.adds_bos), text(N_QUERY), text(N_DECOY)
        tokens, query_ids = ids(block), ids(query, bos=False)
        assert (len(tokens), len(query_ids)) == (n_tokens, N_QUERY)
        assert ids(block + query) == tokens + query_ids
        return Case(
            name,
            str(path),
            tokens,
            query_ids,
            ids(decoy),
            block,
            query,
            decoy,
            repeats,
            str(scratch),
        )


# -- peers in Python: two processes, each of which runs one of these functions ---------------------


def greedy(
    decode: Callable[[Sequence[int]], np.ndarray[Any, Any]], query: Sequence[int], started: float
) -> Answer:
    tokens, digests, seconds, pending = [], [], 0.0, list(query)
    for _ in range(STEPS):
        logits = decode(pending)
        seconds = seconds or time.perf_counter() - started
        digests.append(certificate.digest(logits))
        pending = [int(logits.argmax())]
        tokens += pending
    return Answer(tokens, digests, seconds)


def _decoder(
    context: llama.Context, position: int
) -> Callable[[Sequence[int]], np.ndarray[Any, Any]]:
    def decode(tokens: Sequence[int]) -> np.ndarray[Any, Any]:
        nonlocal position
        logits = context.decode(tokens, position)
        assert logits is not None
        position += len(tokens)
        return logits

    return decode


def taliesin_store(case: Case) -> dict[str, Any]:
    with Engine(case.path, settings=llama.Settings(n_ctx=N_CTX, n_threads=N_THREADS)) as engine:
        with Library(Path(case.scratch) / "library") as library:
            saved = save_tokens(
                engine, library, case.tokens, "block", align="whole", replace_existing=True
            )
        with engine.new_context(engine.settings, N_CTX) as context:
            started = time.perf_counter()
            context.decode([*case.tokens, *case.query], 0)
            fresh_seconds = time.perf_counter() - started
            context.clear()
            context.decode(case.tokens, 0, logits=False)
            live = greedy(_decoder(context, len(case.tokens)), case.query, time.perf_counter())
    return {
        "live": asdict(live),
        "fresh_seconds": fresh_seconds,
        "stored_bytes": saved.info.file_bytes,
    }


def taliesin_use(case: Case) -> list[Answer]:
    answers = []
    with (
        Engine(case.path, settings=llama.Settings(n_threads=N_THREADS)) as engine,
        Library(Path(case.scratch) / "library", create=False) as library,
    ):
        for _ in range(case.repeats):
            with engine.new_context(engine.settings, N_CTX) as context:
                context.decode(case.decoy, 0)
                # a process hashes the engine's libraries once: part of loading
                engine.recipe(context)
                started = time.perf_counter()
                with library.open("block") as block:
                    grafted = engine.graft(block, library=library, policy="always", context=context)
                answer = greedy(_decoder(context, len(case.tokens)), case.query, started)
                answers.append(dataclasses.replace(answer, reused=grafted.restored.n_tokens))
    return answers


def _llama_cpp_python(
    case: Case, swa_full: bool | None
) -> tuple[Any, Callable[[Sequence[int]], np.ndarray[Any, Any]]]:
    """The high-level class as its documentation uses it, and its decode step."""
    import llama_cpp

    model = llama_cpp.Llama(
        case.path,
        n_ctx=N_CTX,
        n_threads=N_THREADS,
        n_threads_batch=N_THREADS,
        flash_attn=True,
        swa_full=swa_full,
        verbose=False,
    )

    def decode(tokens: Sequence[int]) -> np.ndarray[Any, Any]:
        model.eval(tokens)
        pointer = llama_cpp.llama_get_logits_ith(model.ctx, -1)
        return np.ctypeslib.as_array(pointer, shape=(model.n_vocab(),)).copy()

    return model, decode


def pickle_store(case: Case, swa_full: bool | None) -> dict[str, Any]:
    model, decode = _llama_cpp_python(case, swa_full)
    started = time.perf_counter()
    decode([*case.tokens, *case.query])
    fresh_seconds = time.perf_counter() - started
    model.close()
    model, decode = _llama_cpp_python(case, swa_full)
    decode(case.tokens)
    path = Path(case.scratch) / "state.pickle"
    with path.open("wb") as file:
        pickle.dump(model.save_state(), file)
    live = greedy(decode, case.query, time.perf_counter())
    return {
        "live": asdict(live),
        "fresh_seconds": fresh_seconds,
        "stored_bytes": path.stat().st_size,
    }


def pickle_use(case: Case, swa_full: bool | None) -> list[Answer]:
    answers = []
    for _ in range(case.repeats):
        model, decode = _llama_cpp_python(case, swa_full)
        decode(case.decoy)
        started = time.perf_counter()
        with (Path(case.scratch) / "state.pickle").open("rb") as file:
            model.load_state(pickle.load(file))
        reused = model.n_tokens
        answers.append(dataclasses.replace(greedy(decode, case.query, started), reused=reused))
        model.close()
    return answers


def child(role: str, options: dict[str, Any], case: Case) -> Any:
    roles: dict[str, Callable[..., Any]] = {
        "taliesin_store": taliesin_store,
        "taliesin_use": taliesin_use,
        "pickle_store": pickle_store,
        "pickle_use": pickle_use,
    }
    found = roles[role](case, **options)
    return found if isinstance(found, dict) else [asdict(answer) for answer in found]


def _in_process(role: str, case: Case, options: dict[str, Any]) -> Any:
    command = [sys.executable, __file__, "--child", role]
    job = json.dumps({"case": asdict(case), "options": options})
    done = subprocess.run(command, input=job, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def python_peer(name: str, **options: Any) -> Peer:
    def run(case: Case) -> Found:
        stored = _in_process(f"{name}_store", case, options)
        used = _in_process(f"{name}_use", case, options)
        return Found(
            Answer(**stored["live"]),
            stored["fresh_seconds"],
            [Answer(**a) for a in used],
            stored["stored_bytes"],
        )

    return run


# -- peers around llama-server ---------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server_arguments(swa_full: bool) -> list[str]:
    """Options of every server here; all others are llama-server's own defaults."""
    flags = ["--threads", str(N_THREADS), "--flash-attn", "on"]
    return [*flags, *(["--swa-full"] if swa_full else [])]


@contextlib.contextmanager
def process(command: Sequence[str], url: str, log: Path, path: str | None = None) -> Iterator[None]:
    """A server that is healthy inside the block and gone after it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_ARG_")}
    environment["PATH"] = path or os.environ.get("PATH", "")
    with log.open("wb") as out:
        running = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment
        )
    try:
        until = time.monotonic() + 600
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{url}/health", timeout=5, trust_env=False).status_code == 200:
                    break
            if running.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{Path(command[0]).name} did not start")
            time.sleep(0.1)
        yield
    finally:
        running.terminate()
        try:
            running.wait(20)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


@contextlib.contextmanager
def llama_server(case: Case, swa_full: bool, slots: Path) -> Iterator[Client]:
    """llama-server with one slot, without a key: stillwarm has no way to send one."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        str(server.find_binary()),
        *(
            "--model",
            case.path,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--slot-save-path",
            f"{slots}/",
        ),
        *(
            "--parallel",
            "1",
            "--ctx-size",
            str(N_CTX),
            "--no-ui",
            "--offline",
            *server_arguments(swa_full),
        ),
    ]
    with process(command, url, slots / "llama-server.log"):
        client = Client(url)
        yield client
        client.close()


def _digest(probabilities: Any) -> str:
    return hashlib.sha256(repr(probabilities).encode()).hexdigest()


def _ask(client: Client, tokens: Sequence[int], started: float | None = None) -> Answer:
    started = time.perf_counter() if started is None else started
    got = client.complete(tokens, STEPS, 0, n_probs=N_PROBS, ignore_eos=True)
    seconds = time.perf_counter() - started - got.predict_seconds
    return Answer(got.tokens, [_digest(step) for step in got.logprobs], seconds, got.cache_n)


@functools.cache
def references(case: Case, swa_full: bool) -> tuple[float, Answer]:
    """Fresh seconds and the live answer of llama-server, each from a process of its own; leaves the
    block's slot file.
    """
    slots = Path(case.scratch)
    with llama_server(case, swa_full, slots) as client:
        fresh_seconds = _ask(client, [*case.tokens, *case.query]).seconds
    with llama_server(case, swa_full, slots) as client:
        client.complete(case.tokens, 0, 0)
        client.save_slot(0, slot_name(swa_full))
        return fresh_seconds, _ask(client, [*case.tokens, *case.query])


def slot_name(swa_full: bool) -> str:
    return f"a{swa_full:d}"


def slot_peer(swa_full: bool) -> Peer:
    """llama-server's own slot files."""

    def run(case: Case) -> Found:
        slots = Path(case.scratch)
        fresh_seconds, live = references(case, swa_full)
        restored = []
        with llama_server(case, swa_full, slots) as client:
            for _ in range(case.repeats):
                client.complete(case.decoy, 1, 0)
                started = time.perf_counter()
                client.restore_slot(0, slot_name(swa_full))
                restored.append(_ask(client, [*case.tokens, *case.query], started))
        return Found(live, fresh_seconds, restored, (slots / slot_name(swa_full)).stat().st_size)

    return run


STILLWARM = """
import json, sys, time, warnings
import stillwarm
warnings.simplefilter("ignore")
job = json.load(sys.stdin)

class Recording(stillwarm.LlamaServer):
    answers = []
    def completion(self, *args, **kwargs):
        answer = super().completion(*args, **kwargs)
        self.answers.append((answer, time.perf_counter()))
        return answer

server = Recording(job["url"])
profile = stillwarm.ServerProfile(
    model_sha256=job["sha256"], flash_attn="on", cache_type_k="f16", cache_type_v="f16",
    swa_full=job["swa_full"],
    ctx_size=job["n_ctx"],
)
if job["decoy"]:
    server.completion(job["decoy"], 1)
session = stillwarm.Session(server, profile, job["folder"])
server.answers.clear()
started = time.perf_counter()
session.ask(job["session"], job["prompt"], job["n_predict"], sampler=job["sampler"])
answer, ended = server.answers[0]
print(json.dumps({"answer": answer, "seconds": ended - started}))
"""


def stillwarm_peer(venv: Path, swa_full: bool) -> Peer:
    """stillwarm's `Session.ask`: the block with no token to predict stores it, block and query
    restores it.
    """

    def ask(case: Case, client: Client, slots: Path, **job: Any) -> dict[str, Any]:
        sampler = {
            "temperature": 0,
            "top_k": 1,
            "seed": 42,
            "ignore_eos": True,
            "n_probs": N_PROBS,
        }
        fixed = {
            "url": client.url,
            "sha256": models.file_sha256(Path(case.path)),
            "swa_full": swa_full,
            "n_ctx": N_CTX,
            "folder": str(slots),
            "sampler": sampler,
        }
        command = [str(venv / "bin" / "python"), "-c", STILLWARM]
        done = subprocess.run(
            command, input=json.dumps(fixed | job), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def run(case: Case) -> Found:
        fresh_seconds, live = references(case, swa_full)
        slots = Path(case.scratch) / f"stillwarm-{swa_full:d}"
        slots.mkdir()
        with llama_server(case, swa_full, slots) as client:
            ask(case, client, slots, decoy="", prompt=case.text, session="block", n_predict=0)
        stored = {path: path.read_bytes() for path in slots.glob("block.*")}
        restored = []
        with llama_server(case, swa_full, slots) as client:
            for _ in range(case.repeats):
                for path, data in stored.items():  # asking stores again
                    path.write_bytes(data)
                prompt = case.text + case.query_text
                got = ask(
                    case,
                    client,
                    slots,
                    decoy=case.decoy_text,
                    prompt=prompt,
                    session="block",
                    n_predict=STEPS,
                )
                answer = got["answer"]
                steps = answer["completion_probabilities"]
                digests = [
                    _digest(tuple((p["id"], p["logprob"]) for p in step["top_logprobs"]))
                    for step in steps
                ]
                seconds = got["seconds"] - answer["timings"]["predicted_ms"] / 1e3
                restored.append(
                    Answer(answer["tokens"], digests, seconds, answer["timings"]["cache_n"])
                )
        return Found(live, fresh_seconds, restored, sum(map(len, stored.values())))

    return run


def _chat(url: str, messages: list[dict[str, str]], n_predict: int) -> tuple[Answer, str]:
    body = {
        "messages": messages,
        "max_tokens": n_predict,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": N_PROBS,
        "ignore_eos": True,
        "cache_prompt": True,
    }
    started = time.perf_counter()
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=600, trust_env=False)
    seconds = time.perf_counter() - started
    response.raise_for_status()
    got = response.json()
    choice = got["choices"][0]
    steps = choice["logprobs"]["content"]
    digests = [
        _digest(tuple((p["id"], p["logprob"]) for p in step["top_logprobs"])) for step in steps
    ]
    timings = got["timings"]
    answer = Answer(
        [step["id"] for step in steps],
        digests,
        seconds - timings["predicted_ms"] / 1e3,
        timings["cache_n"],
    )
    return answer, choice["message"]["content"]


def hearth_peer(venv: Path, swa_full: bool) -> Peer:
    """hearth's proxy, which knows chat messages: the block is the first message, answered with one
    token; the query the next.
    """

    @contextlib.contextmanager
    def proxy(case: Case, cache: Path) -> Iterator[str]:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = [
            str(venv / "bin" / "hearth"),
            "serve",
            "--model",
            case.path,
            "--port",
            str(port),
            "--upstream-port",
            str(free_port()),
            "--ctx",
            str(N_CTX),
            "--cache-dir",
            str(cache),
            "--",
            *server_arguments(swa_full),
        ]
        path = f"{server.find_binary().parent}{os.pathsep}{os.environ.get('PATH', '')}"
        with process(command, url, Path(case.scratch) / "hearth.log", path):
            yield url

    def run(case: Case) -> Found:
        slots = Path(case.scratch)
        block = [{"role": "user", "content": case.text}]

        def asked(reply: str) -> list[dict[str, str]]:
            return [
                *block,
                {"role": "assistant", "content": reply},
                {"role": "user", "content": case.query_text},
            ]

        with llama_server(case, swa_full, slots) as client:
            _, reply = _chat(client.url, block, 1)
            live, _ = _chat(client.url, asked(reply), STEPS)
        with llama_server(case, swa_full, slots) as client:
            fresh_seconds = _chat(client.url, asked(reply), STEPS)[0].seconds
        cache = slots / f"hearth-{swa_full:d}"
        with proxy(case, cache) as url:
            _, reply_there = _chat(url, block, 1)
            assert reply_there == reply
            until = time.monotonic() + 60  # the answer comes before the state is stored
            while not (cache / "manifest.json").exists() and time.monotonic() < until:
                time.sleep(0.05)
        stored = sum(path.stat().st_size for path in cache.glob("*") if path.suffix != ".log")
        restored = []
        with proxy(case, cache) as url:
            for _ in range(case.repeats):
                _chat(url, [{"role": "user", "content": case.decoy_text}], 1)
                restored.append(_chat(url, asked(reply), STEPS)[0])
        return Found(live, fresh_seconds, restored, stored)

    return run


# -- table -----------------------------------------------------------------------------------------


def installed(venv: Path, name: str) -> str | None:
    """Why the package is not in `venv` (created at need), or None."""
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        PACKAGES[name],
    ]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if not done.returncode:
        return None
    last = [line for line in done.stdout.splitlines() if "ERROR" in line][-1:] or ["pip failed"]
    return "not installable: " + re.sub(r"https?://\S+", "(address)", last[0])


def peers(
    windowed: bool, venv: Path, chosen: Sequence[str]
) -> Iterator[tuple[str, str, Peer | str]]:
    """(peer, variant, how to run it or why not)."""
    full = (False, True) if windowed else (False,)
    if "taliesin" in chosen:
        yield "taliesin", "block", python_peer("taliesin")
    if "llama-cpp-python" in chosen:
        for swa_full in (None, False) if windowed else (None,):
            variant = "save_state, pickled" + (", swa_full=False" if swa_full is False else "")
            yield "llama-cpp-python", variant, python_peer("pickle", swa_full=swa_full)
    try:
        server.find_binary()
        missing = None
    except ToolkitError as error:
        missing = f"not run: {error.message}"
    for name, made in (
        ("llama-server", None),
        ("stillwarm", stillwarm_peer),
        ("hearth-llm", hearth_peer),
    ):
        if name not in chosen:
            continue
        reason = missing or (installed(venv, name) if made else None)
        for swa_full in full:
            variant = ("slot file" if made is None else "default") + (
                ", --swa-full" if swa_full else ""
            )
            yield name, variant, reason or (made(venv, swa_full) if made else slot_peer(swa_full))


def measured(case: Case, run: Peer | str) -> dict[str, Any]:
    """A row's fields, or its `problem`. Of several restores the worst counts."""
    if isinstance(run, str):
        return {"problem": run}
    try:
        found = run(case)
    except (RuntimeError, ToolkitError, httpx.HTTPError, OSError) as error:
        return {
            "problem": str(error).replace(case.scratch, "(folder)").replace(case.path, case.model)
        }

    def equal(field: str) -> int:
        wanted = getattr(found.live, field)
        return int(min(sum(map(operator.eq, getattr(r, field), wanted)) for r in found.restored))

    return {
        "reused": min(r.reused for r in found.restored),
        "tokens_equal": equal("tokens"),
        "vectors_equal": equal("digests"),
        "of": STEPS,
        "stored_bytes": found.stored_bytes,
        "fresh_seconds": found.fresh_seconds,
        "restored_seconds": [r.seconds for r in found.restored],
    }


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| model | tokens | peer | variant | reused | tokens equal | vectors equal | MB | fresh "
        "s | restored s | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        cells = [row["model"], row["n_tokens"], row["peer"], row["variant"]]
        if "problem" in row:
            cells += [""] * 6 + [row["problem"]]
        else:
            fresh, restored = row["fresh_seconds"], min(row["restored_seconds"])
            cells += [
                f"{row['reused']} of {row['n_tokens']}",
                *(f"{row[key]} of {row['of']}" for key in ("tokens_equal", "vectors_equal")),
                f"{row['stored_bytes'] / 1e6:.1f}",
                f"{fresh:.2f}",
                f"{restored:.3f}",
                f"{fresh / restored:.1f}x",
            ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    names = ["taliesin", "llama-cpp-python", "llama-server", *PACKAGES]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", nargs="+", default=["gemma3-270m", "smollm2-135m"], metavar="NAME"
    )
    parser.add_argument("--tokens", nargs="+", type=int, default=[2048, 1500], metavar="N")
    parser.add_argument("--peers", nargs="+", choices=names, default=names, metavar="PEER")
    parser.add_argument("--repeats", type=int, default=2, help="restores by each")
    parser.add_argument("--venv", type=Path, help="keep the peers' virtual environment here")
    parser.add_argument("--json", type=Path, help="where rows are kept")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        job = json.load(sys.stdin)
        print(json.dumps(child(options.child, job["options"], Case(**job["case"]))))
        return
    kept: list[dict[str, Any]] = (
        json.loads(options.json.read_text())["rows"]
        if options.json and options.json.exists()
        else []
    )
    key = ("model", "n_tokens", "peer", "variant")
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        venv = (options.venv or Path(folder) / "venv").absolute()
        for name in options.models:
            path = models.resolve(name)
            with llama.Model(path, vocab_only=True) as model:
                windowed = bool(model.window)
            for n_tokens in options.tokens:
                with tempfile.TemporaryDirectory(dir=folder) as scratch:
                    case = case_of(name, n_tokens, options.repeats, Path(scratch))
                    for peer, variant, run in peers(windowed, venv, options.peers):
                        row: dict[str, Any] = dict(
                            zip(key, (name, n_tokens, peer, variant), strict=True)
                        )
                        row |= measured(case, run)
                        console.note(json.dumps(row))
                        row |= {
                            "model_sha256": models.file_sha256(path),
                            "machine": machine.describe(),
                        }
                        kept = [*(r for r in kept if any(r[k] != row[k] for k in key)), row]
                        if options.json:
                            document = {
                                "schema": "taliesin.bench.peers/1",
                                "packages": PACKAGES,
                                "rows": kept,
                            }
                            options.json.write_text(json.dumps(document, indent=1) + "\n")
    order = {peer: index for index, peer in enumerate(names)}
    kept.sort(key=lambda r: (r["model"], -r["n_tokens"], order[r["peer"]]))
    console.out(markdown(kept))


if __name__ == "__main__":
    main()
