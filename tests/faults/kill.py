"""Kills `tlite` at random times, and lets two runs, a full disk and missing rights get into its way.

    python3 tests/faults/kill.py TLITE MODEL_DIR [--kills N] [--long] [--seed S] [--only KIND,...]

TLITE is the command, MODEL_DIR the folder of the demo's model as tools/setup.sh prepares it: a GGUF
file, and the folders `onnx` and `e0m4`. N kills are spread over the kinds of work. What must hold:

* Nothing half-written is an output, and none of it loads as a model.
* The next start removes or resumes what a killed one left.
* A run that is not killed succeeds, with the same bytes or text as if nothing had been killed.

Ends with 1 if something does not hold. The seed is printed; times differ from run to run.
"""

import argparse
import collections
import hashlib
import http.server
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

# Prefixes of temporary files and folders.
HIDDEN = (".tlite-", ".convert-", ".dequantize-", ".quantize-", ".removed-")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
STORY = "Tell me a long story about a fox and a dog in the snow. " * 12
TIMEOUT = 300


class Failed(Exception):
    """Something does not hold."""


def expect(holds, *what):
    if not holds:
        raise Failed(" ".join(str(w)[-600:] for w in what))


class Ended:
    """How a command ended."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __str__(self):
        return f"exit {self.code}: {self.out[-200:]!r} {self.err[-400:]!r}"


def hashes(folder, without=()):
    """Digests of the files of a folder."""
    files = (f for f in sorted(pathlib.Path(folder).iterdir()) if f.name not in without)
    return {f.name: hashlib.md5(f.read_bytes()).hexdigest() for f in files}


def left(folder):
    """Temporary files and folders anywhere in a folder."""
    found = []
    for place, folders, files in os.walk(folder):
        temporary = (n for n in folders + files if n.startswith(HIDDEN) or n.endswith(".incomplete"))
        found += [os.path.relpath(os.path.join(place, n), folder) for n in temporary]
    return sorted(found)


class Work:
    """What the kinds of work share: a folder, the command, the model."""

    def __init__(self, args, folder):
        self.tlite, self.long = os.path.abspath(args.tlite), args.long
        self.folder = pathlib.Path(folder)
        model = pathlib.Path(args.model).resolve()
        self.onnx, self.e0m4 = model / "onnx", model / "e0m4"
        self.gguf = next(model.glob("*.gguf"))
        self.env = dict(os.environ, TLITE_CACHE_DIR=str(self.folder / "cache"), RUST_BACKTRACE="0")
        self.counts, self.seconds = collections.Counter(), 0

        self.writers = [["convert", self.gguf]]
        if args.long:
            self.writers += [["dequantize", self.e0m4], ["quantize", self.onnx, "--method", "rtn"]]

    def start(self, args, env=None, prepare=None):
        return subprocess.Popen(
            [self.tlite, *map(str, args)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(self.env, **(env or {})),
            preexec_fn=prepare,
        )

    def wait(self, process):
        try:
            out, err = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise Failed(f"{process.args} takes more than {TIMEOUT} s") from None
        expect(process.returncode in (0, 1, 2, -9), process.args, "ended with", process.returncode, err)
        return Ended(process.returncode, out.decode(), err.decode())

    def run(self, args, env=None, prepare=None):
        return self.wait(self.start(args, env, prepare))

    def kill(self, args, part, env=None):
        """Runs a command and kills it after a part of the time that the last whole run took."""
        start, process = time.monotonic(), self.start(args, env)
        try:
            process.wait(part * self.seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        killed = self.wait(process).code == -9
        self.counts["killed" if killed else "ended before"] += 1
        if not killed:
            self.seconds = time.monotonic() - start

    def right(self, args, env=None):
        ended = self.run(args, env)
        expect(ended.code == 0, args, ended)
        return ended

    def timed(self, args, env=None):
        """Like `right`; notes the time."""
        start = time.monotonic()
        ended = self.right(args, env)
        self.seconds = time.monotonic() - start
        return ended

    def generate(self, model, *more):
        """A generation whose text is always the same."""
        return ["generate", model, "--prompt", "Hi", "--raw", "--temperature", "0", "-n", "8", "-c", "64", *more]

    def at(self, name):
        """A new folder."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder


def rounds(kills, each):
    """Numbers of kills between two runs that are not killed."""
    return [min(each, kills - n) for n in range(0, kills, each)]


def outputs(work, kills, command, resumes=False):
    """Kills a command that writes a folder, whose arguments `command` makes of it."""
    folder = work.at("folder")
    reference = folder / "reference"
    work.timed(command(reference))
    whole = hashes(reference)
    expect(left(folder) == [], "left without a kill:", left(folder))
    for count in rounds(kills, 5):
        for n in range(count):
            # What can be resumed is that of the same output.
            out = folder / ("out" if resumes else f"out{n}")
            work.kill(command(out), random.random() * 1.05)
            found = [name for name in left(folder) if "/" not in name]
            expect(len(found) <= 1, "an earlier run left:", found)
            if out.exists():
                expect(hashes(out) == whole, "the output is not whole:", hashes(out))
                shutil.rmtree(out)
        for name in left(folder):
            half = folder / name / "model"
            if half.is_dir() and hashes(half) != whole:
                ended = work.run(work.generate(half))
                expect(ended.code != 0, name, "is not whole and loads:", ended)
                work.counts["half-written folders that do not load"] += 1
        out = folder / "out"
        work.timed(command(out))
        expect(hashes(out) == whole, "the rerun differs:", hashes(out), whole)
        expect(left(folder) == [], "left after a whole run:", left(folder))
        work.counts["equal reruns"] += 1
        shutil.rmtree(out)


def convert(work, kills):
    outputs(work, kills, lambda out: ["convert", work.gguf, "-o", out])


def dequantize(work, kills):
    outputs(work, kills, lambda out: ["dequantize", work.e0m4, "-o", out])


def quantize(work, kills):
    outputs(work, kills, lambda out: ["quantize", work.onnx, "-o", out, "--method", "rtn"], resumes=True)


def cache(work, kills):
    """The kernel cache, from the first start on."""
    folder = work.folder / "kernels"
    env = {"TLITE_CACHE_DIR": str(folder)}
    command = work.generate(work.e0m4, "--backend", "opencl")
    # Kernels that the driver has to compile come from its own cache from now on.
    work.run(command, env)
    shutil.rmtree(folder, ignore_errors=True)
    first = work.timed(command, env)
    for count in rounds(kills, 4):
        shutil.rmtree(folder)
        for _ in range(count):
            work.kill(command, random.random(), env)
        ended = work.timed(command, env)
        expect(ended.out == first.out, "the text differs:", ended.out, first.out)
        expect("damaged" not in ended.err, ended.err)
        expect(left(folder) == [], "left:", left(folder))
        work.counts["equal reruns"] += 1


def prompt(work, kills):
    """A prompt cache; most kills are near its end, where it is written."""
    folder = work.at("prompt")
    file = folder / "cache"
    command = ["generate", work.e0m4, "--prompt", STORY, "--temperature", "0", "-n", "4", "-c", "512"]
    command += ["--prompt-cache", file]
    first = work.timed(command)
    file.unlink()
    for count in rounds(kills, 5):
        for n in range(count):
            part = random.random() if n % 4 == 0 else 0.55 + 0.5 * random.random()
            work.kill(command, part)
        ended = work.timed(command)
        expect(ended.out == first.out, "the text differs:", ended.out, first.out)
        expect(os.listdir(folder) == ["cache"], "left:", os.listdir(folder))
        work.counts["equal reruns"] += 1
        file.unlink()


class Hub(http.server.BaseHTTPRequestHandler):
    """A model hub with one file in one repository."""

    content, digest, name = b"", "", ""

    def log_message(self, *args):
        del args

    def answer(self, status, headers=(), content=b""):
        self.send_response(status)
        for header in [*headers, ("Content-Length", len(content)), ("Connection", "close")]:
            self.send_header(*map(str, header))
        self.end_headers()
        if self.command != "HEAD":
            try:
                self.wfile.write(content)
            except OSError:
                pass  # The client was killed.

    def do_GET(self):
        if self.path == "/api/models/owner/repo/revision/main":
            listed = {"sha": COMMIT, "siblings": [{"rfilename": self.name}]}
            self.answer(200, [("Content-Type", "application/json")], json.dumps(listed).encode())
        elif self.path.startswith("/owner/repo/resolve/") and self.path.endswith("/" + self.name):
            headers = [("X-Repo-Commit", COMMIT), ("X-Linked-Etag", f'"{self.digest}"')]
            headers += [("X-Linked-Size", len(self.content)), ("Location", f"/cdn/{self.digest}")]
            self.answer(302, headers)
        elif self.path == f"/cdn/{self.digest}":
            first = self.headers.get("Range")
            if first is None:
                return self.answer(200, content=self.content)
            first, all_ = int(first.removeprefix("bytes=").removesuffix("-")), len(self.content)
            self.answer(206, [("Content-Range", f"bytes {first}-{all_ - 1}/{all_}")], self.content[first:])
        else:
            self.answer(404)

    do_HEAD = do_GET


def pull(work, kills):
    """A download and its conversion."""
    Hub.content, Hub.name = work.gguf.read_bytes(), work.gguf.name
    Hub.digest = hashlib.sha256(Hub.content).hexdigest()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folder = work.folder / "pull"
    env = {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(folder / "hub"),
        "TLITE_MODELS": str(folder / "models"),
        "NO_PROXY": "127.0.0.1",
    }
    command = ["pull", f"owner/repo:{Hub.name}"]
    model = folder / "models" / work.gguf.stem
    try:
        work.at("pull")
        work.timed(command, env)
        # The manifest holds times.
        whole = hashes(model, without=["manifest.json"])
        for count in rounds(kills, 4):
            work.at("pull")
            for _ in range(count):
                work.kill(command, random.random(), env)
                if model.exists():
                    found = hashes(model, without=["manifest.json"])
                    expect(found == whole, "the model is not whole:", found)
            work.timed(command, env)
            expect(hashes(model, without=["manifest.json"]) == whole, "the rerun differs")
            expect(left(folder) == [], "left:", left(folder))
            expect(os.listdir(model.parent).count(model.name) == 1, os.listdir(model.parent))
            work.counts["equal reruns"] += 1
    finally:
        server.shutdown()


def together(work):
    """Several runs at once to one output, one kernel cache, one prompt cache."""
    folder = work.at("folder")
    for command in work.writers:
        out = folder / "out"
        started = [work.start([*command, "-o", out]) for _ in range(3)]
        ended = [work.wait(p) for p in started]
        expect(sorted(e.code for e in ended) == [0, 1, 1], *ended)
        losers = [e for e in ended if e.code == 1]
        expect(all("another run is writing this output" in e.err for e in losers), *losers)
        expect(not any("delete" in e.err or "resume" in e.err for e in losers), *losers)
        expect(left(folder) == [], "left:", left(folder))
        work.right(work.generate(out))
        shutil.rmtree(out)
    env = {"TLITE_CACHE_DIR": str(folder / "kernels")}
    ended = [work.wait(p) for p in [work.start(work.generate(work.e0m4), env) for _ in range(3)]]
    expect({e.code for e in ended} == {0} and len({e.out for e in ended}) == 1, *ended)
    expect(not any("damaged" in e.err for e in ended), *ended)
    command = work.generate(work.e0m4, "--prompt-cache", folder / "prompt")
    ended = [work.wait(p) for p in [work.start(command) for _ in range(3)]]
    expect({e.code for e in ended} == {0} and len({e.out for e in ended}) == 1, *ended)
    expect(left(folder) == [], "left:", left(folder))


def full(limit):
    """What a full disk looks like to a process: no file grows beyond the limit."""

    def prepare():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return prepare


def disk(work):
    """A full disk. A tmpfs of a few MB would need the rights of root."""
    folder = work.at("folder")
    for command in work.writers:
        for limit in (0, 10_000, 5_000_000) if work.long else (5_000_000,):
            ended = work.run([*command, "-o", folder / "out"], prepare=full(limit))
            expect(ended.code == 1, command, limit, ended)
            # Finished weights are kept for the next run.
            found = [n for n in left(folder) if not n.startswith(".quantize-")]
            expect(found == [] and not (folder / "out").exists(), command, limit, "left:", found)
        work.right([*command, "-o", folder / "out"])
        expect(left(folder) == [], command, "left:", left(folder))
        shutil.rmtree(folder / "out")
    reference = work.right(work.generate(work.e0m4))
    host = ["--backend", "reference"]
    for args, code in (
        # PoCL ends the process itself where its own cache is full, so these run on the host.
        (work.generate(work.e0m4, *host, "--prompt-cache", folder / "prompt"), 1),
        (work.generate(work.e0m4, *host), 0),
        (["inspect", work.e0m4, "--html", folder / "page.html"], 1),
    ):
        ended = work.run(args, {"TLITE_CACHE_DIR": str(folder / "kernels")}, prepare=full(1000))
        expect(ended.code == code, args, ended)
        expect(left(folder) == [], args, "left:", left(folder))
    with open("/dev/full", "wb") as device:
        args = [work.tlite, *map(str, work.generate(work.e0m4))]
        done = subprocess.run(args, stdout=device, stderr=subprocess.PIPE, env=work.env, check=False)
    expect(done.returncode == 1 and b"panicked" not in done.stderr, done)
    expect(work.right(work.generate(work.e0m4)).out == reference.out, "the text differs")


def rights(work):
    """No permission. Modes do not stop root: a file in place of a folder, and /proc, do."""
    folder = work.at("folder")
    (folder / "file").write_text("")
    text = work.right(work.generate(work.e0m4)).out
    places = [folder / "file", folder / "file" / "below", pathlib.Path("/proc/none")]
    for place in places if work.long else places[1:2]:
        for command in work.writers:
            ended = work.run([*command, "-o", place])
            expect(ended.code in (1, 2), command, place, ended)
        ended = work.right(work.generate(work.e0m4), {"TLITE_CACHE_DIR": str(place)})
        expect(ended.out == text, "the text differs:", ended.out, text)
        if place.name != "file":
            ended = work.run(work.generate(work.e0m4, "--prompt-cache", place))
            expect(ended.code in (1, 2), place, ended)
        ended = work.run(["inspect", work.gguf], {"TLITE_MODELS": str(place)})
        expect(ended.code in (0, 1), place, ended)
    expect(os.listdir(folder) == ["file"], os.listdir(folder))


def memory(work):
    """Too little memory for a conversion: an error, not an abort."""
    folder = work.at("folder")
    needs = os.path.getsize(work.tlite) + work.gguf.stat().st_size
    for more in range(0, 120, 5) if work.long else (10, 50):
        limit = needs + (more << 20)
        bound = lambda limit=limit: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        ended = work.run(["convert", work.gguf, "-o", folder / "out"], prepare=bound)
        work.counts[f"exit {ended.code}"] += 1
        expect("panicked" not in ended.err and left(folder) == [], limit, ended, left(folder))
        shutil.rmtree(folder / "out", ignore_errors=True)


KILLS = [convert, quantize, dequantize, cache, prompt, pull]
CHECKS = [together, disk, rights, memory]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("tlite")
    parser.add_argument("model")
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--long", action="store_true", help="also dequantize and quantize; more places and limits")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", help="kinds of work, separated by commas", default="")
    args = parser.parse_args()
    random.seed(args.seed)
    print(f"seed {args.seed}")
    only = [name for name in args.only.split(",") if name]
    usual = lambda k: args.long or k not in (quantize, dequantize)
    wanted = lambda kinds: [k for k in kinds if (k.__name__ in only if only else usual(k))]
    kinds, failed, before = wanted(KILLS), False, 0
    jobs = [(k, args.kills * (i + 1) // len(kinds) - args.kills * i // len(kinds)) for i, k in enumerate(kinds)]
    for kind, kills in jobs + [(check, None) for check in wanted(CHECKS)]:
        with tempfile.TemporaryDirectory(prefix="tlite-faults-") as folder:
            work, start = Work(args, folder), time.monotonic()
            try:
                kind(work) if kills is None else kind(work, kills)
                result = "ok"
            except Failed as e:
                failed, result = True, f"FAILED: {e}"
            counts = ", ".join(f"{n} {what}" for what, n in work.counts.items())
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu, before = used.ru_utime + used.ru_stime - before, used.ru_utime + used.ru_stime
            times = f"{time.monotonic() - start:.0f} s, {cpu:.0f} s of processor time"
            print(f"{kind.__name__}: {result} ({times}) {counts}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
