#!/bin/bash
# databases.sh: SQLite and PostgreSQL on a mount. Everything is killed while clients write; after import and the database's
# own recovery it is sound, and every transaction that was acknowledged is there.
# ROUNDS (2) kills for each of SQLite's journals and for PostgreSQL, PG_SCALE (5) of pgbench, PG_SECONDS (4) a round.
. "$(dirname "$0")/bed.sh"
packages sqlite3 postgresql
need root fuse sqlite3 runuser
ROUNDS=${ROUNDS:-2} PG_SCALE=${PG_SCALE:-5} PG_SECONDS=${PG_SECONDS:-4}
PARTS=${PARTS:-sqlite postgres}
PG=$(dirname "$(ls -d /usr/lib/postgresql/*/bin/initdb 2>/dev/null | sort -V | tail -1)")
[ -x "$PG/initdb" ] || skip "needs PostgreSQL (Debian: postgresql)"
room 4
make_bed 3 1300M
"$LARDER" pool create -m "$MNT" tank raidz1 $(devices)
# As operations.md has it for databases.
"$LARDER" fs create -o recordsize=16K tank/db
mounted
D=$MNT/db
transactions=0

# all_there WHAT ACKNOWLEDGED FOUND: what was acknowledged (lines of two numbers) was found.
all_there() {
    LC_ALL=C sort -u "$2" >"$BED/out/acknowledged"
    LC_ALL=C sort -u "$3" >"$BED/out/found"
    check "$1: something was acknowledged" test -s "$BED/out/acknowledged"
    same "$1: every acknowledged transaction is there" /dev/null \
        <(LC_ALL=C comm -23 "$BED/out/acknowledged" "$BED/out/found")
    transactions=$((transactions + $(wc -l <"$BED/out/acknowledged")))
}

# --- SQLite: writers and readers at once, for each kind of journal.
part_sqlite() {
    local journal round database pids n settings last pid
    for journal in wal delete persist; do
        # But for "wal", a journal's mode is that of a connection. "extra": with "full", the unlinking of a journal, which
        # is the commit, may not have come to the disk.
        settings=(-cmd ".output /dev/null" -cmd "pragma busy_timeout=30000; pragma journal_mode=$journal;
            pragma synchronous=extra;" -cmd ".output stdout")
        database=$D/$journal.db
        sqlite3 "$database" "pragma journal_mode=$journal; create table t(w int, n int, filler, primary key(w, n));
            create index i on t(n);" >/dev/null
        : >"$BED/out/all.$journal"
        last=0
        for round in $(seq "$ROUNDS"); do
            pids=()
            for n in 1 2 3 4; do
                # The line comes out when the insert before it has been committed.
                for i in $(seq $((last + 1)) $((last + 20000))); do
                    echo "insert into t values($n, $i, hex(randomblob($((i % 300))))); select $n, $i;"
                done | sqlite3 -bail -separator ' ' "${settings[@]}" "$database" >"$BED/out/acks$n" 2>"$BED/out/sqlite$n" &
                pids+=($!)
            done
            for n in 1 2; do
                while :; do
                    sqlite3 "${settings[@]}" "$database" \
                        "select case when count(*) = count(distinct w * 1000000 + n) then 'fine' else 'twice' end from t" || break
                done >"$BED/out/read$n" 2>/dev/null &
                pids+=($!)
            done
            within 60 grep -qs fine "$BED/out/read1" || true
            sleep "1.$((RANDOM % 900 + 100))"
            kill_daemon
            # They hear of it; whichever way they end is theirs.
            for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
            for n in 1 2 3 4; do
                # SQLite takes a commit for done when it has unlinked the journal and then cannot open the folder to sync
                # it: the last one of each is no promise.
                grep -aE '^[1-4] [0-9]+$' "$BED/out/acks$n" | if [ $journal = delete ]; then head -n -1; else cat; fi
            done >>"$BED/out/all.$journal" || true
            grep -hv '^[0-9]*$' "$BED"/out/acks[1-4] | grep -avE '^[1-4] [0-9]+$' || true
            check "sqlite $journal, round $round: readers saw each row once" test "$(grep -hv '^[0-9]*$' "$BED"/out/read[12] | sort -u)" = fine
            check "sqlite $journal, round $round: import" "$LARDER" pool import -d "$DEVICES" tank
            mounted
            same "sqlite $journal, round $round: integrity_check" <(echo ok) \
                <(sqlite3 "${settings[@]}" "$database" "pragma integrity_check" 2>&1 | grep -v '^[0-9]*$')
            sqlite3 -separator ' ' "$database" "select w, n from t" >"$BED/out/rows"
            all_there "sqlite $journal, round $round" "$BED/out/all.$journal" "$BED/out/rows"
            last=$(sqlite3 "$database" "select coalesce(max(n), 0) from t")
        done
        check "sqlite $journal: vacuum" sqlite3 "${settings[@]}" "$database" vacuum
        rm "$database"*
    done
}

# --- PostgreSQL, as a user of its own.
as() { runuser -u "$PG_USER" -- "$@"; }
sql() { as "$PG/psql" -qAt -h "$BED/socket" -d bench -v ON_ERROR_STOP=1 "$@"; }
start_postgres() { as "$PG/pg_ctl" -w -t 120 -D "$D/pg" -l "$BED/socket/log" start; }

part_postgres() {
    local round pids n pid postmaster
    PG_USER=$(id -un postgres 2>/dev/null || echo nobody)
    mkdir -m 700 "$D/pg" "$BED/socket"
    chown "$PG_USER" "$D/pg" "$BED/socket"
    cd "$BED/socket"
    check "initdb" as "$PG/initdb" -D "$D/pg" -A trust -E UTF8 --locale=C --data-checksums
    cat >>"$D/pg/postgresql.conf" <<C
listen_addresses = ''
unix_socket_directories = '$BED/socket'
shared_buffers = 32MB
max_wal_size = 128MB
min_wal_size = 64MB
checkpoint_timeout = 30s
C
    check "postgres starts" start_postgres
    as "$PG/createdb" -h "$BED/socket" bench
    check "pgbench -i" as "$PG/pgbench" -h "$BED/socket" -i -q -s "$PG_SCALE" bench
    sql -c "create table acknowledged(w int, n int, filler text, primary key(w, n))"
    : >"$BED/out/all.pg"
    for round in $(seq "$ROUNDS"); do
        pids=()
        as "$PG/pgbench" -h "$BED/socket" -n -c 4 -j 2 -T 3600 bench >"$BED/out/pgbench" 2>&1 &
        pids+=($!)
        for n in 1 2; do
            for i in $(seq $((round * 100000)) $((round * 100000 + 50000))); do
                echo "insert into acknowledged values($n, $i, repeat('x', $((i % 500))));"
                echo "\\echo $n $i"
            done | sql >"$BED/out/acks$n" 2>"$BED/out/psql$n" &
            pids+=($!)
        done
        sleep "$PG_SECONDS.$((RANDOM % 900 + 100))"
        postmaster=$(head -n 1 "$D/pg/postmaster.pid")
        # Everything at once.
        kill -9 "$(daemon_pid)" "$postmaster" $(pgrep -P "$postmaster") || true
        for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
        for _ in $(seq 1200); do [ -d "/proc/$postmaster" ] || pgrep -f "postgres.*$D/pg" >/dev/null || break; sleep 0.05; done
        cat "$BED"/out/acks[12] | grep -aE '^[12] [0-9]+$' >>"$BED/out/all.pg" || true
        check "postgres, round $round: the mount is dead" within 60 dead "$MNT"
        check "postgres, round $round: import" "$LARDER" pool import -d "$DEVICES" tank
        mounted
        check "postgres, round $round: recovery" start_postgres
        sql -c "select w || ' ' || n from acknowledged" >"$BED/out/rows"
        all_there "postgres, round $round" "$BED/out/all.pg" "$BED/out/rows"
        same "postgres, round $round: the books of pgbench balance" <(echo t) <(sql -c "select
            (select sum(abalance) from pgbench_accounts) = (select coalesce(sum(delta), 0) from pgbench_history) and
            (select sum(tbalance) from pgbench_tellers) = (select coalesce(sum(delta), 0) from pgbench_history) and
            (select sum(bbalance) from pgbench_branches) = (select coalesce(sum(delta), 0) from pgbench_history)")
        check "postgres, round $round: pg_amcheck" as "$PG/pg_amcheck" -h "$BED/socket" --all --install-missing --heapallindexed
    done
    check "postgres: vacuum" sql -c "vacuum full pgbench_accounts"
    check "postgres stops" as "$PG/pg_ctl" -w -D "$D/pg" stop -m fast
    check "postgres: every page has its checksum" as "$PG/pg_checksums" --check -D "$D/pg"
    cd /
}

# A server that is left when the script ends early.
end_postgres() {
    local postmaster
    postmaster=$(head -n 1 "$D/pg/postmaster.pid" 2>/dev/null) || return 0
    grep -qa "$D/pg" "/proc/$postmaster/cmdline" 2>/dev/null && kill -9 "$postmaster" $(pgrep -P "$postmaster")
}
clear_more() { end_postgres; }

for part in $PARTS; do
    before=$SECONDS
    "part_$part"
    echo "  $part: $((SECONDS - before)) s"
done
healthy
finish "$transactions acknowledged transactions"
