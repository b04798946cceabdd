"""Reads and writes safetensors files with numpy alone (F32 tensors).

Layout: an unsigned little-endian 64-bit header length, the header as JSON padded with spaces to a
multiple of 8 bytes, then the tensors' bytes. Each header entry gives dtype, shape and data_offsets,
the half-open byte range of the tensor counted from the end of the header.
"""

import json
import os
import struct

import numpy as np

ALIGNMENT = 8


def save(path, tensors):
    """Writes {name: float32 array} to path, in the order of the names. Replaces path atomically."""
    header = {"__metadata__": {"format": "pt"}}
    offset = 0
    names = sorted(tensors)
    for name in names:
        array = tensors[name]
        if array.dtype != np.float32:
            raise ValueError(f"{name}: only float32 is written, got {array.dtype}")
        header[name] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    encoded = json.dumps(header, separators=(",", ":")).encode("utf-8")
    encoded += b" " * (-len(encoded) % ALIGNMENT)

    partial = f"{path}.partial"
    with open(partial, "wb") as out:
        out.write(struct.pack("<Q", len(encoded)))
        out.write(encoded)
        for name in names:
            out.write(np.ascontiguousarray(tensors[name]).astype("<f4").tobytes())
    os.replace(partial, path)


def load(path):
    """Returns {name: float32 array}. Raises ValueError for a file `save` would not write."""
    with open(path, "rb") as source:
        content = source.read()
    (header_length,) = struct.unpack_from("<Q", content)
    data_start = 8 + header_length
    header = json.loads(content[8:data_start])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        count = int(np.prod(entry["shape"]))
        if entry["dtype"] != "F32" or end - begin != 4 * count or data_start + end > len(content):
            raise ValueError(f"{path}: bad entry for {name}: {entry}")
        flat = np.frombuffer(content, dtype="<f4", count=count, offset=data_start + begin)
        tensors[name] = flat.reshape(entry["shape"])
    return tensors
