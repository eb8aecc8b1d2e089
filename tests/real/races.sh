#!/bin/bash
# races.sh: what processes see of each other on a mount: files that are replaced, removed, held without being open,
# mapped while others write, and changed by strangers.
. "$(dirname "$0")/bed.sh"
need root fuse transport
make_bed 2 512M
RACES=$(program races)

"$LARDER" pool create -m "$MNT" tank mirror $(devices)
mounted
for what in replaced held mapped bits; do
    mkdir "$MNT/$what"
    check "$what" "$RACES" "$what" "$MNT/$what"
done
# What lost its last name and was forgotten is gone.
rm -rf "${MNT:?}"/*
check "space comes back" within 20 sh -c "! '$LARDER' pool status tank | grep -q freeing"
healthy
finish
