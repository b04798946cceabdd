#!/usr/bin/env python3
"""Golden vectors of identities, keys, headers and tickets: DESIGN section 3 written a second time, from the text alone.

Usage: make_vectors.py [FILE]    writes the vectors to FILE, or vectors.json beside this script.
Needs the standard library only. Every byte string in the output is hex.
"""

import hashlib
import hmac
import json
import os
import struct
import sys

TEXT_TAGS = [
    (1, "tenant"),
    (2, "cache_salt"),
    (3, "model"),
    (4, "model_revision"),
    (5, "adapter"),
    (6, "adapter_revision"),
    (7, "numerics"),
]


def field(tag, value):
    return struct.pack("<HI", tag, len(value)) + value


def canonical(identity):
    out = b""
    for tag, name in TEXT_TAGS:
        value = identity.get(name, "").encode("utf-8")
        if value:
            out += field(tag, value)
    out += field(8, struct.pack("<I", identity["block_tokens"]))
    if "rope" in identity:
        rope = identity["rope"]
        value = struct.pack("<dIB", rope["theta"], rope["rotary_dim"], 1 if rope["interleaved"] else 0)
        out += field(9, value + rope.get("scaling", "").encode("utf-8"))
    policy = identity.get("attention_policy", "")
    if policy not in ("", "full"):
        out += field(10, policy.encode("utf-8"))
    extras = [(name + "=" + value).encode("utf-8") for name, value in identity.get("extra", {}).items()]
    for extra in sorted(extras):
        out += field(11, extra)
    return out


def hmac_sha256(key, data):
    return hmac.new(key, data, hashlib.sha256).digest()


def extra_digest(items):
    return hashlib.sha256(b"".join(struct.pack("<I", offset) + digest for offset, digest in items)).digest()


def block_key(parent, tokens, extra=b""):
    return hashlib.sha256(parent + struct.pack("<%dI" % len(tokens), *tokens) + extra).digest()[:16]


def chain(root, tokens, block_tokens):
    keys, parent = [], root
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        parent = block_key(parent, tokens[start : start + block_tokens])
        keys.append(parent)
    return keys


def identity_vector(name, identity, cluster_secret, tokens):
    data = canonical(identity)
    fingerprint = hashlib.sha256(data).digest()
    tenant_secret = hmac_sha256(cluster_secret, b"kvmesh/1 tenant" + identity.get("tenant", "").encode("utf-8"))
    root = hmac_sha256(tenant_secret, b"kvmesh/1 root" + fingerprint)[:16]
    return {
        "name": name,
        "identity": identity,
        "cluster_secret": cluster_secret.hex(),
        "tokens": tokens,
        "canonical": data.hex(),
        "fingerprint": fingerprint.hex(),
        "tenant_secret": tenant_secret.hex(),
        "root": root.hex(),
        "keys": [key.hex() for key in chain(root, tokens, identity["block_tokens"])],
    }


def token_stream(count, seed):
    return [(seed + i * 2654435761) % 2**32 for i in range(count)]


ALL_FIELDS = {
    "tenant": "acme",
    "cache_salt": "salt-7",
    "model": "llama-3-8b",
    "model_revision": "sha256:9f86d081884c7d65",
    "adapter": "sql",
    "adapter_revision": "r3",
    "numerics": "bf16/kv-fp8",
    "block_tokens": 16,
    "rope": {"theta": 500000.0, "rotary_dim": 128, "interleaved": True, "scaling": "yarn factor=4"},
    "attention_policy": "sinks=4,window=1020",
    "extra": {"a": "1", "a-b": "2", "a.b": "3", "a0": "4", "a_b": "5", "empty": ""},
}


def identities():
    secret = bytes(range(32))
    whole = dict(ALL_FIELDS)
    full = dict(ALL_FIELDS, attention_policy="full")
    absent = {name: value for name, value in ALL_FIELDS.items() if name != "attention_policy"}
    other = dict(ALL_FIELDS, tenant="globex")
    yield identity_vector("all fields", whole, secret, token_stream(40, 1))
    yield identity_vector("another tenant", other, secret, token_stream(40, 1))
    yield identity_vector("full attention", full, secret, token_stream(16, 1))
    yield identity_vector("absent attention policy", absent, secret, token_stream(16, 1))
    yield identity_vector("block size alone", {"block_tokens": 16}, secret, token_stream(33, 7))
    yield identity_vector("empty cluster secret", {"model": "m", "block_tokens": 16}, b"", token_stream(16, 0))
    yield identity_vector("one token per block", {"model": "m", "block_tokens": 1}, secret, [0, 2**32 - 1, 42])
    yield identity_vector("512 tokens per block", {"model": "m", "block_tokens": 512}, secret, token_stream(1100, 3))
    yield identity_vector("nothing full", {"model": "m", "block_tokens": 4096}, secret, token_stream(5, 3))
    yield identity_vector(
        "unicode",
        {
            "tenant": "Zoë",
            "cache_salt": "\u007f\u0080\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff",
            "model": "模型",
            "numerics": "e\u0301 is not \u00e9",
            "block_tokens": 2,
            "extra": {"note": "a=b, \"quoted\"\n\t\u0000 end", "emoji": "🦙"},
        },
        b"raw \x00 bytes \xff\n",
        [7, 8, 9, 10],
    )
    rope = {"theta": 10000, "rotary_dim": 64, "interleaved": False}
    yield identity_vector("rope without scaling", {"block_tokens": 4, "rope": rope}, secret, token_stream(8, 5))
    rope = {"theta": 1234.5678e-3, "rotary_dim": 1, "interleaved": False, "scaling": ""}
    yield identity_vector("rope with an odd theta", {"block_tokens": 4, "rope": rope}, secret, token_stream(8, 5))
    yield identity_vector(
        "long secret", {"tenant": "t", "block_tokens": 8, "attention_policy": "sinks=0,window=1"}, b"k" * 200,
        token_stream(8, 6))


def extras():
    parent = bytes(range(100, 116))
    tokens = token_stream(16, 11)
    image = hashlib.sha256(b"image").digest()
    audio = hashlib.sha256(b"audio").digest()
    for items in ([], [(0, image)], [(3, image), (9, audio)], [(9, audio), (3, image)]):
        digest = extra_digest(items)
        yield {
            "parent": parent.hex(),
            "tokens": tokens,
            "items": [{"offset": offset, "content": content.hex()} for offset, content in items],
            "digest": digest.hex(),
            "key": block_key(parent, tokens, digest).hex(),
        }


def header():
    """DESIGN 4.7: the header in front of every copy that leaves a pool. The checksum is given, not computed."""
    root, key, parent, layout = (bytes([seed + i for i in range(size)])
                                 for seed, size in ((0x10, 16), (0x20, 16), (0x30, 16), (0x40, 8)))
    body = struct.pack("<IHH", 0x424D564B, 1, 116) + root + key + parent
    body += struct.pack("<IHHHHQ", 2, 4, 8, 1, 3, 160) + layout
    body += struct.pack("<IIQQQ", 3, 0b1010, 1_700_000_000_123_456, 65536, 0x0123456789ABCDEF)
    return body.hex()


def layout_fingerprint():
    """bf16, 4 layers, 2 heads, 16 tokens, head_dim 8, dense."""
    token = 8 * 2
    head = token * 16
    kv = head * 2
    layer = kv * 2
    data = struct.pack("<5I5Q", 3, 4, 2, 16, 8, token, head, kv, layer, layer * 4)
    return hashlib.sha256(data).digest()[:8].hex()


def ticket():
    cluster_secret = b"cluster"
    key = hmac_sha256(cluster_secret, b"kvmesh/1 ticket")
    sender, receiver = b"worker-a", b"worker-b"
    body = struct.pack("<IH", 0x544D564B, 1) + bytes(range(1, 17))
    body += struct.pack("<H", len(sender)) + sender + bytes(range(0x21, 0x31))
    body += struct.pack("<H", len(receiver)) + receiver + bytes(range(0x41, 0x51))
    body += bytes(range(0x61, 0x71)) + bytes(range(0x81, 0x91))
    body += struct.pack("<IIIQ", 3, 5, 2, 1_700_000_010_250)
    return {
        "cluster_secret": cluster_secret.hex(),
        "key": key.hex(),
        "sealed": (body + hmac_sha256(key, body)).hex(),
    }


def set_digest():
    """Members (i, i+1, lossy i) for i in 0..2, as 16-byte strings of one repeated byte."""
    total, members = 0, []
    for i in range(3):
        data = bytes([i]) * 16 + bytes([i + 1]) * 16 + struct.pack("<I", i)
        member = hashlib.sha256(data).digest()[:16]
        members.append(member.hex())
        total = (total + int.from_bytes(member, "little")) % 2**128
    return {"members": members, "sum": total.to_bytes(16, "little").hex(), "count": 3}


def render():
    """One vector per line, so that a change shows up as a small difference."""
    def lines(vectors):
        return ",\n".join("    " + json.dumps(vector) for vector in vectors)

    return (
        '{\n  "version": "kvmesh/1",\n'
        '  "identities": [\n' + lines(identities()) + "\n  ],\n"
        '  "extras": [\n' + lines(extras()) + "\n  ],\n"
        '  "header": ' + json.dumps(header()) + ",\n"
        '  "layout_fingerprint": ' + json.dumps(layout_fingerprint()) + ",\n"
        '  "ticket": ' + json.dumps(ticket()) + ",\n"
        '  "set_digest": ' + json.dumps(set_digest()) + "\n}\n"
    )


def main():
    default = os.path.join(os.path.dirname(os.path.abspath(__file__)), "vectors.json")
    path = sys.argv[1] if len(sys.argv) > 1 else default
    with open(path, "w", encoding="utf-8", newline="\n") as out:
        out.write(render())


if __name__ == "__main__":
    main()
