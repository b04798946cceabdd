"""Plays a multi-turn conversation set over one coordinator and three workers on loopback, and checks every answer.

Every request goes to the next worker in turn, so that prefixes computed on one are resumed on the others. Pools are small, so
that blocks move to host memory and disk and come back. Python's standard library only.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

WORKERS = 3
# Blocks of 16 tokens. One conversation fits the device pool, the four of them do not fit device and host.
DEVICE_BLOCKS = 92
HOST_BLOCKS = 12
MAX_TOKENS = 24

SYSTEM = (
    "You are the steward of a great house. Answer each question in plain words, and be brief. "
    "Speak of what is written, and of nothing else. When a tool is needed, name it and give its arguments. "
)
TOOLS = json.dumps(
    [
        {"name": "find_verse", "description": "Finds a verse by its words.",
         "parameters": {"words": "string", "book": "string", "limit": "integer"}},
        {"name": "count_words", "description": "Counts how often a word stands in a book.",
         "parameters": {"word": "string", "book": "string"}},
        {"name": "list_names", "description": "Lists the names of people in a chapter.",
         "parameters": {"book": "string", "chapter": "integer"}},
        {"name": "measure", "description": "Turns cubits, spans and furlongs into metres.",
         "parameters": {"value": "number", "unit": "string"}},
    ],
    indent=1,
)
CONVERSATIONS = [
    ["Who built the house of cedar, and how long was it in building?", "And who brought the stones?",
     "What did the king say when it was finished?", "How many cubits was its height?"],
    ["What did the shepherd say to his brother in the field?", "And what answer did his brother give him?",
     "Where did they go after that?", "Who saw them on the way?"],
    ["Name the rivers that went out of the garden.", "Which of them is the greatest?",
     "What stones are found by the first?", "Who dwelt beside the fourth?"],
    ["How many men went up against the city?", "What did they carry in their hands?",
     "On which day did the wall fall down?", "And who was saved out of it?"],
]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Cluster:
    """The processes; ended and cleaned up on exit, whatever happens."""

    def __init__(self, bin_dir, model, folder):
        self.bin, self.model, self.folder = bin_dir, model, folder
        self.coordinator = f"127.0.0.1:{free_port()}"
        self.processes = []

    def start(self):
        self._spawn("kvmesh-coordinator", "--listen", self.coordinator)
        for i in range(WORKERS):
            self._spawn(
                "kvmesh-worker", "--id", f"worker-{i}", "--coordinator", self.coordinator, "--model", self.model,
                "--device-blocks", str(DEVICE_BLOCKS), "--host-blocks", str(HOST_BLOCKS),
                "--disk-dir", os.path.join(self.folder, f"disk-{i}"), "--disk-floor-bytes", "0",
                "--disk-reserve-bytes", "0", "--max-pinned-fraction", "0.9")
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for process in self.processes:
                if process.poll() is not None:
                    raise RuntimeError(f"{process.args[0]} exited with {process.returncode}")
            stats = self._run("stats", "--coordinator", self.coordinator, check=False)
            if stats and stats["workers_ready"] == WORKERS:
                return
            time.sleep(0.1)
        raise RuntimeError("the workers were not ready within 30 s")

    def _spawn(self, program, *arguments):
        log = open(os.path.join(self.folder, f"{program}-{len(self.processes)}.log"), "wb")
        with log:
            self.processes.append(subprocess.Popen(
                [os.path.join(self.bin, program), "--insecure", *arguments], stdin=subprocess.DEVNULL, stdout=log,
                stderr=log))

    def _run(self, command, *arguments, check=True):
        done = subprocess.run([os.path.join(self.bin, "kvmesh"), command, "--insecure", "--json", *arguments],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        if done.returncode != 0:
            if check:
                raise RuntimeError(f"kvmesh {command}: {done.stderr.decode(errors='replace').strip()}")
            return None
        return json.loads(done.stdout)

    def generate(self, prompt, worker, no_cache=False):
        return self._run("generate", "--coordinator", self.coordinator, "--worker", worker, "--prompt", prompt,
                         "--max-tokens", str(MAX_TOKENS), *(["--no-cache"] if no_cache else []))

    def stats(self):
        return self._run("stats", "--coordinator", self.coordinator)

    def stop(self):
        """SIGTERM to all; returns the exit codes."""
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        codes = []
        for process in self.processes:
            try:
                codes.append(process.wait(timeout=15))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(process.wait())
        return codes


def play(cluster):
    """All requests, turn by turn over the conversations; returns one record each."""
    header = f"{'request':>9} {'prompt':>7} {'device':>7} {'host':>6} {'disk':>6} {'peer':>6}  {'worker':<9} {'sources':<24} {'ttft ms':>8}"
    print(header)
    records = []
    histories = [f"{SYSTEM}\n{TOOLS}\n" for _ in CONVERSATIONS]
    number = 0
    for turn in range(len(CONVERSATIONS[0])):
        for c, questions in enumerate(CONVERSATIONS):
            prompt = f"{histories[c]}\nQ: {questions[turn]}\nA:"
            worker = f"worker-{number % WORKERS}"
            warm = cluster.generate(prompt, worker)
            cold = cluster.generate(prompt, worker, no_cache=True)
            hits = warm["hits_by_tier"]
            sources = ",".join(f"{s['peer']}:{s['blocks']}" for s in warm["sources"]) or "-"
            print(f"{c + 1:>6}.{turn + 1:<2} {warm['prompt_tokens']:>7} {hits['device']:>7} {hits['host']:>6} {hits['disk']:>6} "
                  f"{hits['peer']:>6}  {warm['worker']:<9} {sources:<24} {warm['ttft_ms']:>8.1f}", flush=True)
            records.append((prompt, warm, cold))
            histories[c] = prompt + warm["text"]
            number += 1
    return records


def check(records, codes):
    """Every reason to fail."""
    faults = []
    totals = {tier: sum(warm["hits_by_tier"][tier] for _, warm, _ in records) for tier in ("device", "host", "disk", "peer")}
    for i, (_, warm, cold) in enumerate(records):
        if warm["tokens"] != cold["tokens"]:
            faults.append(f"request {i + 1}: the cached answer differs from the uncached one")
    for tier, tokens in totals.items():
        if tokens == 0:
            faults.append(f"no token came from {tier}")
    resumed = [(warm, cold) for _, warm, cold in records if warm["computed_tokens"] > 0]
    warm_ms = sum(warm["ttft_ms"] for warm, _ in resumed) / max(1, len(resumed))
    cold_ms = sum(cold["ttft_ms"] for _, cold in resumed) / max(1, len(resumed))
    if not resumed or warm_ms >= cold_ms:
        faults.append("warm TTFT is not below cold")
    for code in codes:
        if code != 0:
            faults.append(f"a process exited with {code}")
    return faults, totals, warm_ms, cold_ms


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", required=True, help="folder of the programs")
    parser.add_argument("--model", required=True, help="folder of the model")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = tempfile.mkdtemp(prefix="kvmesh_demo_")
    cluster = Cluster(arguments.bin, arguments.model, folder)
    codes, records, stats = [], [], None
    try:
        cluster.start()
        records = play(cluster)
        stats = cluster.stats()
    finally:
        codes = cluster.stop()
        failed_start = not records
        if failed_start:
            for name in sorted(os.listdir(folder)):
                if name.endswith(".log"):
                    with open(os.path.join(folder, name), errors="replace") as log:
                        sys.stderr.write(f"--- {name}\n{log.read()[-2000:]}\n")
        shutil.rmtree(folder, ignore_errors=True)
    faults, totals, warm_ms, cold_ms = check(records, codes)
    requested = sum(warm["prompt_tokens"] for _, warm, _ in records)
    hit = sum(totals.values())
    print(f"\n{len(records)} requests, {requested} prompt tokens, {hit} from cache ({100 * hit / requested:.1f} %): "
          + ", ".join(f"{tier} {tokens}" for tier, tokens in totals.items()))
    print(f"cluster hit rate by the coordinator's count: {100 * stats['hit_rate']:.1f} %")
    print(f"TTFT cold {cold_ms:.1f} ms, warm {warm_ms:.1f} ms" + (f" ({cold_ms / warm_ms:.1f}x)" if warm_ms else ""))
    print("every answer equals its uncached run" if not faults else "\n".join(f"FAILED: {fault}" for fault in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
