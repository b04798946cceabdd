"""How a Python frontend asks a cluster: routes a prompt, generates on the chosen worker, tells the coordinator how it went.

    apt-get install python3-grpcio python3-protobuf protobuf-compiler protobuf-compiler-grpc
    /usr/bin/python3 client/examples/frontend.py COORDINATOR      (a cluster from `kvmesh up`, without TLS)
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time

import grpc

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def load_protos():
    """Generates the Python code of proto/kvmesh/v1 and imports it."""
    out = tempfile.mkdtemp(prefix="kvmesh_protos_")
    protos = [f"kvmesh/v1/{name}.proto" for name in ("common", "coordinator", "worker")]
    subprocess.run(["protoc", f"-I{ROOT}/proto", f"--python_out={out}", f"--grpc_out={out}",
                    f"--plugin=protoc-gen-grpc={shutil.which('grpc_python_plugin')}", *protos], check=True)
    sys.path.insert(0, out)
    from kvmesh.v1 import coordinator_pb2, coordinator_pb2_grpc, worker_pb2, worker_pb2_grpc
    shutil.rmtree(out)
    return coordinator_pb2, coordinator_pb2_grpc, worker_pb2, worker_pb2_grpc


def await_indexed(coordinator, route_request, seconds=5):
    """Waits until the coordinator knows of the prompt's first blocks: reports travel behind the data."""
    probe = type(route_request)()
    probe.CopyFrom(route_request)
    probe.lookup_only = True
    deadline = time.monotonic() + seconds
    while coordinator.Route(probe, timeout=10).matched_tokens == 0:
        if time.monotonic() > deadline:
            sys.exit("the coordinator did not learn of the prompt's blocks")
        time.sleep(0.01)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: frontend.py COORDINATOR")
    coordinator_pb2, coordinator_grpc, worker_pb2, worker_grpc = load_protos()
    coordinator = coordinator_grpc.CoordinatorStub(grpc.insecure_channel(sys.argv[1]))

    # The identity says what makes K/V interchangeable; workers with a model tell theirs.
    workers = coordinator.ListWorkers(coordinator_pb2.ListWorkersRequest(), timeout=10).workers
    identity = workers[0].info.model_identity
    prompt = b"In the beginning God created the heaven and the earth. And the earth was without form"

    route_request = coordinator_pb2.RouteRequest(identity=identity)
    route_request.tokens.ids.extend(prompt)  # the shipped model's tokens are bytes
    for attempt in ("cold", "warm"):
        route = coordinator.Route(route_request, timeout=10)
        worker = worker_grpc.WorkerStub(grpc.insecure_channel(route.worker_address))
        request = worker_pb2.GenerateRequest(tokens=list(prompt), max_tokens=24, sources=route.sources)
        text, start = b"", None
        for response in worker.Generate(request, timeout=30):
            if response.HasField("start"):
                start = response.start
            elif response.HasField("token"):
                text += response.token.text
        coordinator.Complete(coordinator_pb2.CompleteRequest(placement_id=route.placement_id, hits=start.hits), timeout=10)
        await_indexed(coordinator, route_request)
        print(f"{attempt}: {start.worker_id} resumed {start.computed_tokens} of {start.prompt_tokens} tokens -> {text.decode()!r}")
    return 0 if start.computed_tokens > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
