#!/usr/bin/env python3
"""Writes down a tree of files, a line each, as larder_zfs_stream::Line does: zfs_listing.py FOLDER"""

import ctypes
import hashlib
import os
import stat
import sys


def escaped(raw):
    return "".join(chr(b) if 0x21 <= b <= 0x7E and b != 0x5C else f"\\x{b:02x}" for b in raw)


def walk(top, path=b""):
    yield path
    with os.scandir(os.path.join(top, path)) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        below = entry.name if not path else path + b"/" + entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from walk(top, below)
        else:
            yield below


LIBC = ctypes.CDLL(None, use_errno=True)


def xattr(path, name):
    # Not by os.getxattr: to its first call, with a small buffer, zfs-fuse gives a length in place of a value.
    value = ctypes.create_string_buffer(65536)
    got = LIBC.lgetxattr(path, name, value, len(value))
    if got < 0:
        raise OSError(ctypes.get_errno(), "lgetxattr", path)
    return value.raw[:got]


def xattrs(path):
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError:
        return []
    return sorted((name, xattr(path, name)) for name in map(os.fsencode, names))


KINDS = {stat.S_IFDIR: "d", stat.S_IFREG: "f", stat.S_IFLNK: "l", stat.S_IFIFO: "p", stat.S_IFSOCK: "s",
         stat.S_IFCHR: "c", stat.S_IFBLK: "b"}


def digest(path):
    # Times stay as they are.
    fd = os.open(path, os.O_RDONLY | os.O_NOATIME)
    with open(fd, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main():
    top = os.fsencode(sys.argv[1])
    paths = sorted(walk(top))
    stats = {path: os.lstat(os.path.join(top, path)) for path in paths}
    first = {}
    for path in paths:
        first.setdefault(stats[path].st_ino, path)
    for path in paths:
        st, whole = stats[path], os.path.join(top, path)
        kind = KINDS[stat.S_IFMT(st.st_mode)]
        line = f"/{escaped(path)} {kind} {stat.S_IMODE(st.st_mode):o} {st.st_uid}:{st.st_gid}"
        for ns in (st.st_atime_ns, st.st_mtime_ns, st.st_ctime_ns):
            line += f" {ns // 10**9}.{ns % 10**9:09}"
        line += f" {1 if kind == 'd' else st.st_nlink} /{escaped(path if kind == 'd' else first[st.st_ino])}"
        if kind == "f":
            line += f" {st.st_size} {digest(whole)}"
        elif kind == "l":
            line += f" {escaped(os.readlink(whole))}"
        elif kind in "bc":
            line += f" {os.major(st.st_rdev)},{os.minor(st.st_rdev)}"
        for name, value in xattrs(whole):
            line += f" {escaped(name)}={value.hex()}"
        print(line)


main()
