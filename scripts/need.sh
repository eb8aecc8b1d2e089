#!/bin/bash
# need.sh COMMAND[:PACKAGE]...: installs the Debian packages of commands that are missing, where that is
# possible (as root, or by sudo); where it is not, says what to install and lets the caller go on.
set -euo pipefail

missing=()
for need in "$@"; do
    command -v "${need%%:*}" >/dev/null || [ -x "/usr/sbin/${need%%:*}" ] || missing+=("${need##*:}")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
    as_root=(sudo -n)
    [ -t 0 ] && as_root=(sudo)
fi
if ! command -v apt-get >/dev/null || { [ ${#as_root[@]} -gt 0 ] && ! command -v sudo >/dev/null; }; then
    echo "need.sh: missing, and not to be installed from here: ${missing[*]}" >&2
    exit 0
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
{ "${as_root[@]}" apt-get -qq update && "${as_root[@]}" apt-get -qq install -y --no-install-recommends "${missing[@]}"; } \
    >/dev/null || { echo "need.sh: could not install ${missing[*]}" >&2; exit 0; }
