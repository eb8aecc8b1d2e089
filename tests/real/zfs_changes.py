#!/usr/bin/env python3
"""Makes and changes a tree of files, step by step: zfs_changes.py FOLDER STEP SOURCE...

Step 0 copies the sources and makes one of everything; each further step changes names, content, attributes and the
sizes of directories at random, by a seed that is the step. What it makes depends on nothing else."""

import os
import random
import shutil
import socket
import stat
import sys

XATTRS = os.environ.get("ZFS_XATTRS", "1") == "1"
SMALL = os.environ.get("ZFS_SMALL", "0") == "1"
NAMES = [b"plain", b"with space", b"tab\there", "h\u00fcl\u00e9 \u4e16\u754c".encode(), b"\xff\xfe raw", b"new\nline", b"-dash",
         b"\\back", b"quote'\"", b".hidden", b"n" * 255]


def write(path, content, mode="wb"):
    with open(path, mode) as file:
        file.write(content)


def setxattr(path, name, value):
    if XATTRS:
        os.setxattr(path, name, value)


def removexattr(path, name):
    if XATTRS:
        os.removexattr(path, name)


def times(path, rng):
    secs = rng.choice([0, 1, 981173106, 1234567890, 1700000000 + rng.randrange(10**6)])
    os.utime(path, ns=(secs * 10**9 + rng.randrange(10**9), secs * 10**9 + rng.randrange(10**9)), follow_symlinks=False)


def begin(top, sources, rng):
    for number, source in enumerate(sources):
        shutil.copytree(source, os.path.join(top, f"source{number}".encode()), symlinks=True, ignore_dangling_symlinks=True)
    odd = os.path.join(top, b"odd")
    os.mkdir(odd)
    for name in NAMES:
        path = os.path.join(odd, name)
        write(path, name * 3)
        times(path, rng)
        os.chown(path, rng.randrange(70000), rng.randrange(70000))
        os.chmod(path, rng.choice([0o644, 0o4755, 0o2755, 0o1777, 0o000, 0o640]))
    kinds = os.path.join(top, b"kinds")
    os.mkdir(kinds, 0o1777)
    os.mkfifo(os.path.join(kinds, b"fifo"), 0o640)
    os.mknod(os.path.join(kinds, b"char"), 0o600 | stat.S_IFCHR, os.makedev(5, 300))
    os.mknod(os.path.join(kinds, b"block"), 0o600 | stat.S_IFBLK, os.makedev(259, 70))
    os.mknod(os.path.join(kinds, b"socket"), 0o600 | stat.S_IFSOCK)
    os.symlink(b"short", os.path.join(kinds, b"link"))
    os.symlink(b"l" * 900, os.path.join(kinds, b"long link"))
    os.lchown(os.path.join(kinds, b"link"), 12, 13)
    links = os.path.join(top, b"links")
    os.mkdir(links)
    for number in range(10):
        path = os.path.join(links, b"%d" % number)
        write(path, b"%d" % number)
        for other in range(number):
            os.link(path, path + b"." + b"x" * other)
    sparse = os.path.join(top, b"sparse")
    os.mkdir(sparse)
    for number in range(4):
        path = os.path.join(sparse, b"%d" % number)
        write(path, b"")
        with open(path, "r+b") as file:
            for _ in range(number):
                file.seek(rng.randrange((1 if SMALL else 64) << 20))
                file.write(rng.randbytes(rng.randrange(1, 5000 if SMALL else 300000)))
            file.truncate(max(file.seek(0, 2), 3 << 20))
    write(os.path.join(top, b"large"), rng.randbytes(20_000 if SMALL else 30_000_000))
    for count in (3, 60, 400 if SMALL else 6000):
        grow(os.path.join(top, b"names%d" % count), count, rng)
    xattrs = os.path.join(top, b"xattrs")
    os.mkdir(xattrs)
    for number in range(8):
        path = os.path.join(xattrs, b"%d" % number)
        write(path, b"x")
        for other in range(number):
            setxattr(path, b"user.name%d" % other, rng.randbytes(rng.choice([0, 1, 40, 5000])))
    setxattr(xattrs, b"user.of a folder", b"value")
    setxattr(os.path.join(xattrs, b"1"), b"trusted.known", b"to root")


def grow(path, count, rng):
    os.makedirs(path, exist_ok=True)
    for number in range(count):
        name = b"%d-" % number + b"n" * rng.randrange(60)
        write(os.path.join(path, name), b"%d" % number)


def walk(top):
    folders, files = [], []
    for path, below, names in os.walk(top):
        folders += [os.path.join(path, name) for name in sorted(below) if not os.path.islink(os.path.join(path, name))]
        files += [os.path.join(path, name) for name in sorted(names)]
    return sorted(folders), sorted(files)


def regular(path):
    return os.path.isfile(path) and not os.path.islink(path)


def change(top, step, rng):
    folders, files = walk(top)
    fresh = iter(range(10**9))
    new = lambda: b"new%d-%d" % (step, next(fresh))
    few = max(1, len(files) // 200)

    # Names.
    for path in rng.sample(files, few):
        os.rename(path, os.path.join(rng.choice(folders), new()))
    folders, files = walk(top)
    for path in rng.sample(files, few):
        os.unlink(path)
    folders, files = walk(top)
    for path in rng.sample(files, few):
        if not os.path.islink(path):
            os.link(path, os.path.join(rng.choice(folders), new()))
    # A file in another's place, which gets its number, and a folder in a file's.
    for path in rng.sample([path for path in files if regular(path)], few):
        os.unlink(path)
        if rng.random() < 0.2:
            os.mkdir(path)
            write(os.path.join(path, b"below"), b"below")
        else:
            write(path, rng.randbytes(rng.randrange(3000)))
    # Folders change places, go below others, and go.
    folders, _ = walk(top)
    for path in rng.sample(folders, max(2, len(folders) // 100)):
        to = os.path.join(rng.choice(folders), new())
        if os.path.isdir(path) and os.path.isdir(os.path.dirname(to)) and not to.startswith(path + b"/"):
            os.rename(path, to)
    folders, _ = walk(top)
    one, other = rng.sample([path for path in folders if path.count(b"/") == top.count(b"/") + 1], 2)
    aside = os.path.join(top, new())
    os.rename(one, aside)
    os.rename(other, one)
    os.rename(aside, other)
    # Turned over: what was above is below.
    inner = [path for path in walk(top)[0] if os.path.dirname(path) != top]
    if inner:
        below = rng.choice(inner)
        above = os.path.dirname(below)
        aside = os.path.join(top, new())
        os.rename(below, aside)
        os.rename(above, os.path.join(aside, new()))
    folders, _ = walk(top)
    for path in rng.sample(folders, max(1, len(folders) // 200)):
        if os.path.isdir(path) and path.count(b"/") > top.count(b"/") + 1:
            shutil.rmtree(path)

    # Content.
    _, files = walk(top)
    plain = [path for path in files if regular(path)]
    for path in rng.sample(plain, 4 * few):
        size = os.stat(path).st_size
        how = rng.randrange(6)
        with open(path, "r+b") as file:
            if how == 0:
                file.truncate(rng.randrange(size + 1))
            elif how == 1:
                file.seek(0, 2)
                file.write(rng.randbytes(rng.randrange(200_000 if not SMALL else 3000)))
            elif how == 2:
                file.seek(rng.randrange(size + 1))
                file.write(rng.randbytes(rng.randrange(5000)))
            elif how == 3:
                file.truncate(size + rng.randrange(1 << 20))
            elif how == 4:
                file.truncate(0)
                file.seek(rng.randrange(1 << 20))
                file.write(b"end")
            else:
                file.truncate(rng.randrange(size + 1))
                file.truncate(size)
    for name in (b"large", b"sparse/3", b"sparse/1"):
        path = os.path.join(top, name)
        if os.path.isfile(path):
            with open(path, "r+b") as file:
                size = file.seek(0, 2)
                for _ in range(5):
                    file.seek(rng.randrange(size))
                    file.write(rng.randbytes(3000))

    # Attributes.
    for path in rng.sample(files, few):
        if os.path.lexists(path):
            os.lchown(path, rng.randrange(1000), rng.randrange(1000))
            if not os.path.islink(path):
                os.chmod(path, rng.choice([0o600, 0o755, 0o4711]))
                times(path, rng)
    if XATTRS:
        for path in rng.sample([path for path in files if regular(path)], few):
            here = os.listxattr(path)
            for name in here:
                if rng.random() < 0.5:
                    os.removexattr(path, name)
            os.setxattr(path, b"user.step%d" % step, rng.randbytes(rng.randrange(2000)))
        for path in [path for path in files if regular(path) and os.listxattr(path)]:
            if rng.random() < 0.3:
                os.setxattr(path, os.listxattr(path)[0], rng.randbytes(rng.randrange(100)))

    # Folders that grow, shrink, empty themselves, and grow again.
    shrink = os.path.join(top, b"shrinks")
    if step % 2:
        grow(shrink, 300 if SMALL else 3000, rng)
    elif os.path.isdir(shrink):
        for name in os.listdir(shrink):
            if rng.random() < 0.98:
                path = os.path.join(shrink, name)
                shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    again = os.path.join(top, b"again")
    shutil.rmtree(again, ignore_errors=True)
    grow(again, (2, 300, 5, 1000)[step % 4] // (4 if SMALL else 1) + 1, rng)


def main():
    top, step = os.fsencode(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(step)
    os.umask(0o022)
    if step == 0:
        begin(top, [os.fsencode(source) for source in sys.argv[3:]], rng)
    else:
        change(top, step, rng)


main()
