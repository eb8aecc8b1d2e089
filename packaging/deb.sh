#!/bin/bash
# deb.sh BINARY FOLDER: Debian packages of a built larder, in FOLDER: larder, larder-dbgsym (debug symbols) and
# larder-zfs-compat (zpool, zfs, zdb, arcstat). By dpkg-deb alone: three packages with links, units and scripts are a
# page of shell, which cargo-deb would only be told in another file, and it would have to be installed first.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
version=$("$binary" --version | cut -d' ' -f2)
arch=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
chmod 755 "$work"
umask 022

# pack NAME: makes the package of the folder $work/NAME; the rest of its control file comes on standard input.
pack() {
    local root=$work/$1 name=${1}_${version}_$arch.deb
    mkdir -p "$root/DEBIAN"
    {
        echo "Package: $1"
        echo "Version: $version"
        echo "Architecture: $arch"
        echo "Maintainer: the authors of Larder <larder@localhost>"
        echo "Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)"
        cat
    } >"$root/DEBIAN/control"
    (cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | xargs -0r md5sum) >"$root/DEBIAN/md5sums"
    dpkg-deb --root-owner-group -Zxz -z"${XZ:-6}" --build "$root" "$out/$name" >/dev/null
    echo "$out/$name"
}

# The newest glibc that the binary asks for.
glibc=$(objdump -T "$binary" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1 | cut -d_ -f2)

root=$work/larder
install -Dm 755 "$binary" "$root/usr/bin/larder"
debug=$work/larder-dbgsym/usr/lib/debug/usr/bin/larder.debug
mkdir -p "$(dirname "$debug")"
objcopy --only-keep-debug --compress-debug-sections "$binary" "$debug"
chmod 644 "$debug"
strip "$root/usr/bin/larder"
objcopy --add-gnu-debuglink="$debug" "$root/usr/bin/larder"
mkdir -p "$root/usr/sbin"
ln -s ../bin/larder "$root/usr/sbin/mount.larder"
install -Dm 644 -t "$root/usr/lib/systemd/system" "$here"/systemd/*
install -Dm 644 "$here/deb/default" "$root/etc/default/larder"
install -Dm 644 -t "$root/usr/share/doc/larder" "$here"/../{README.md,CHANGELOG.md,LICENSE-MIT,LICENSE-APACHE} "$here/../docs/operations.md"
mkdir "$root/DEBIAN"
echo /etc/default/larder >"$root/DEBIAN/conffiles"
install -m 755 -t "$root/DEBIAN" "$here"/deb/{postinst,prerm,postrm}
pack larder <<END
Section: admin
Priority: optional
Depends: libc6 (>= $glibc), libgcc-s1
Recommends: fuse3
Description: storage pools in user space
 Several disks become one place for files, with redundancy, checksums,
 compression, snapshots and datasets with properties, over FUSE.
END
pack larder-dbgsym <<END
Section: debug
Priority: optional
Depends: larder (= $version)
Description: debug symbols of larder
END
compat=$work/larder-zfs-compat
mkdir -p "$compat/usr/sbin" "$compat/usr/bin"
for name in zpool zfs zdb; do ln -s ../bin/larder "$compat/usr/sbin/$name"; done
ln -s larder "$compat/usr/bin/arcstat"
pack larder-zfs-compat <<END
Section: admin
Priority: optional
Depends: larder (= $version)
Conflicts: zfsutils-linux, zfs-fuse
Description: larder by the names zpool, zfs, zdb and arcstat
END
