"""Seeded rounds: `larder dedupe --apply` over a tree that is written meanwhile, some of them killed.

Every write goes to the tree and to a model beside it; at the end of a round both must be equal.
Arguments: larder, tree, model, hash file, rounds, first seed.
"""

import json
import os
import random
import subprocess
import sys
import time

LARDER, TREE, MODEL, HASHES = sys.argv[1:5]
ROUNDS, SEED = int(sys.argv[5]), int(sys.argv[6])
BLOCK = 4096
# Few contents, so that much is equal.
CONTENTS = [bytes([n]) * BLOCK if n < 3 else random.Random(n).randbytes(BLOCK) for n in range(12)]


def change(rng):
    """One change, on both sides."""
    name = f"f{rng.randrange(12)}"
    what = rng.randrange(10)
    data = b"".join(rng.choice(CONTENTS) for _ in range(rng.randrange(1, 64)))[: rng.randrange(1, 64 * BLOCK)]
    at = rng.randrange(64) * BLOCK + rng.choice([0, 0, 0, 7])
    for folder in (TREE, MODEL):
        path = os.path.join(folder, name)
        if what == 0 and os.path.exists(path):
            os.unlink(path)
        elif what == 1 and os.path.exists(path):
            os.truncate(path, at)
        elif what == 2 and os.path.exists(path):
            os.rename(path, os.path.join(folder, f"f{(at // BLOCK) % 12}"))
        else:
            fd = os.open(path, os.O_RDWR | os.O_CREAT)
            os.pwrite(fd, data, at)
            os.close(fd)


def contents(folder):
    """All files with their bytes."""
    found = {}
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file:
            found[name] = file.read()
    return found


shared = 0
for seed in range(SEED, SEED + ROUNDS):
    rng = random.Random(seed)
    for _ in range(40):
        change(rng)
    run = subprocess.Popen(
        [LARDER, "dedupe", "--apply", "-j", "--least", "4K", "--hash-file", HASHES, TREE], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    kill_at = time.monotonic() + rng.uniform(0, 0.15) if seed % 3 == 0 else None
    end = time.monotonic() + 0.2
    while time.monotonic() < end and run.poll() is None:
        change(rng)
        if kill_at and time.monotonic() > kill_at:
            run.kill()
            break
    out, err = run.communicate(timeout=60)
    if run.returncode not in (0, -9):
        sys.exit(f"seed {seed}: code {run.returncode}: {err.decode()}")
    if out:
        report = json.loads(out)["file_systems"][0]
        shared += report["shared"]
    if err and run.returncode != -9:
        sys.exit(f"seed {seed}: {err.decode()}")
    if contents(TREE) != contents(MODEL):
        differ = [name for name, data in contents(MODEL).items() if contents(TREE).get(name) != data]
        sys.exit(f"SEED={seed} DEDUPE_ROUNDS=1: {differ} differ")
if shared == 0:
    sys.exit("nothing was ever shared: these rounds show nothing")
print(f"{ROUNDS} rounds, {shared} bytes shared")
