"""Runs the frontend examples against `kvmesh up`, and ends it with Ctrl-C: nothing may be left running.

    examples.py SOURCE_FOLDER BIN_FOLDER

The Python example needs python3-grpcio, python3-protobuf and grpc_python_plugin; without them it is left out, and said so.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile

SKIPPED = "skipped: the Python example, for lack of python3-grpcio, python3-protobuf or grpc_python_plugin"


def start_cluster(bin_folder, log):
    """The process of `kvmesh up`, which writes its errors to `log`, and its coordinator's address."""
    up = subprocess.Popen([os.path.join(bin_folder, "kvmesh"), "up", "--workers", "2"], stdout=subprocess.PIPE,
                          stderr=log, text=True)
    line = up.stdout.readline()  # ends with the process, should that end first
    words = line.split()
    if "--coordinator" not in words:
        raise RuntimeError(f"kvmesh up said {line!r}")
    return up, words[words.index("--coordinator") + 1]


def python_with_grpc():
    """An interpreter that has grpc, or None."""
    if not shutil.which("grpc_python_plugin"):
        return None
    for python in ("/usr/bin/python3", sys.executable):
        probe = [python, "-c", "import grpc, google.protobuf"]
        if subprocess.run(probe, stderr=subprocess.DEVNULL, timeout=30).returncode == 0:
            return python
    return None


def check(source, bin_folder, log):
    """Raises what is wrong."""
    up, coordinator = start_cluster(bin_folder, log)
    with open(f"/proc/{up.pid}/task/{up.pid}/children") as file:
        children = file.read().split()
    try:
        subprocess.run([os.path.join(bin_folder, "kvmesh-frontend-example"), coordinator], check=True, timeout=60)
        python = python_with_grpc()
        if python:
            example = os.path.join(source, "client", "examples", "frontend.py")
            subprocess.run([python, example, coordinator], check=True, timeout=60)
        else:
            print(SKIPPED)
    finally:
        up.send_signal(signal.SIGINT)
        code = up.wait(timeout=30)
    if code != 0:
        raise RuntimeError(f"kvmesh up exited with {code}")
    left = [pid for pid in children if os.path.exists(f"/proc/{pid}")]
    if len(children) != 3 or left:
        raise RuntimeError(f"started {children}, still there after Ctrl-C: {left}")


def main():
    source, bin_folder = sys.argv[1:]
    with tempfile.TemporaryFile("w+") as log:
        try:
            check(source, bin_folder, log)
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read())
            raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
