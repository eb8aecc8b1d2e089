# make deb     Debian packages in target/debian: larder, larder-dbgsym, larder-zfs-compat
# make run     a pool on six files, real files in it, and what became of them; `make clean-run` takes it away
# make quick   for every commit: format, lints, unit tests (3 minutes at most)
# make test    what CI runs: quick, every test, and the real mounts of tests/real (some 50 minutes on two cores)
# make peers   the same work on Larder and on what else is installed: docs/peers.md and docs/peers.svg. Needs root.
#              SIZE=full for more of it, DIR=FOLDER on the disk that is to be measured, PEERS="--only seq" for a part
# make ageing  pools that are nearly full, overwritten for long, beside btrfs and zfs-fuse: docs/ageing.md and docs/ageing.svg.
#              Needs root. CELLS='80/128K/*' for a part, DIR=FOLDER, MIB=4096 of a pool, CAP=60 seconds for each
# make dedup   what deduplication costs and saves, beside borg, restic and zfs-fuse: docs/dedup.md and docs/dedup.svg. Needs
#              root. DIR=FOLDER, DEDUP="--only streams" for a part, "--mib 2400" for a larger corpus
# make dedupe  `larder dedupe` beside duperemove on XFS and btrfs: the table of docs/dedupe.md. Needs root. DIR=FOLDER,
#              DEDUPE="--on xfs --tools larder,duperemove --mib 1024" for a part
# make survival resilver and scrub beside fio making the same requests, reading while devices are lost or slow:
#              docs/survival.md and docs/survival.svg. DIR=FOLDER, SURVIVAL="--only resilver" for a part
# make index   the dedup index alone, with 10^7 fingerprints: bytes of memory and of disk (part of `make test`)
# make soak    the same with every count in full (hours); `make soak-PART` for a part: tests, cuts, seeds, torture,
#              schedules, mutants, real, survival
#
# Honours CARGO_TARGET_DIR. SRC="folder ..." names other folders for `make run`.

CARGO_TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
export CARGO_TARGET_DIR
export LARDER := $(CARGO_TARGET_DIR)/release/larder

CARGO := cargo
STEP := scripts/step.sh
# One command for all that `make test` runs in release: other packages together would be built with other features.
BUILD_TESTED = $(CARGO) build --release --locked -p larder-app -p larder-differential -p larder-real -p larder-benches \
	--bin larder --bin differential --bin crowd --bin races --bin witness --bin zfs_streams --bin index
WITH_MUTANTS := --features larder-upkeep/mutants,larder-files/mutants,larder-stream/mutants
SRC :=
SIZE := small
DIR := $(or $(TMPDIR),/var/tmp)
PEERS := --out docs
CELLS := */*/*
MIB := 4096
CAP := 60
AGEING := --out docs
DEDUP := --out docs
SURVIVAL := --out docs
DEDUPE :=

.PHONY: build deb run clean-run lint quick test checks mounts mutants real index peers ageing dedup dedupe survival soak help
.NOTPARALLEL:

build:
	$(CARGO) build --release --locked -p larder-app

deb: build
	@scripts/need.sh dpkg-deb:dpkg objcopy:binutils
	packaging/deb.sh $(LARDER) $(CARGO_TARGET_DIR)/debian

run:
	@scripts/need.sh cc:gcc fusermount3:fuse3
	@$(MAKE) --no-print-directory build
	@scripts/run.sh $(SRC)

clean-run:
	@scripts/run.sh --clean

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --locked -- -D warnings
	$(CARGO) clippy --workspace --all-targets --locked $(WITH_MUTANTS) -- -D warnings
	RUSTDOCFLAGS='-D warnings -A rustdoc::private_intra_doc_links' \
		$(CARGO) doc --workspace --no-deps --document-private-items --locked --quiet
	$(CARGO) test -p larder-tidy --locked --quiet

quick: lint
	$(CARGO) test --workspace --locked --lib --bins --test golden --test volume --test musts --test losses --test torture --test imports --test apart --test reclaim --test schedules

# What works and what waits, side by side: together they keep two cores busy.
test:
	@scripts/side_by_side.sh '$(MAKE) --no-print-directory checks' '$(MAKE) --no-print-directory mounts'

# All of one build, with mutants, which are off unless a test switches one on: so the tests of those tests are among
# them. Real mounts have the build without. The same cases in every run; `quick` and `soak` draw new ones each time. What
# has a step of its own is not done twice.
checks: TESTED = $(CARGO) test --workspace --locked $(WITH_MUTANTS)
checks: export LARDER_FULL := 1
checks: export PROPTEST_RNG_SEED := 1
checks:
	@$(STEP) lint $(MAKE) --no-print-directory lint
	@LARDER_CUTS=1 LARDER_SEEDS=1 LARDER_SCHEDULES=1 $(STEP) tests $(TESTED) --no-fail-fast
	@LARDER_CUTS=5000 $(STEP) cuts $(TESTED) --test volume simulation -- --nocapture
	@LARDER_SEEDS=300 $(STEP) seeds $(TESTED) --test reclaim -- --nocapture
	@LARDER_SCHEDULES=500 $(STEP) schedules $(TESTED) --test schedules -- --skip mutants --nocapture

mounts:
	@$(STEP) 'release build' $(BUILD_TESTED)
	@$(STEP) index $(MAKE) --no-print-directory index
	@$(STEP) real $(MAKE) --no-print-directory real

# The same features in each, so that nothing is built twice.
mutants: MUTATED = $(CARGO) test --workspace --locked $(WITH_MUTANTS)
mutants:
	$(MUTATED) --test mutants -- --nocapture
	$(MUTATED) --test schedules mutants -- --nocapture
	$(MUTATED) --test volume panic
	$(MUTATED) --test streams mutants
	$(MUTATED) --test everything mutants -- --nocapture

real:
	@scripts/need.sh $(REAL_NEEDS)
	$(BUILD_TESTED)
	tests/real/run.sh

# The dedup index with 10^7 fingerprints: bytes of memory and of disk, reads a miss; times do not count.
index:
	$(BUILD_TESTED)
	$(CARGO_TARGET_DIR)/release/index --dir $(DIR) --counts 1e7 --memory 128 --redb 0 --check

# Commands that the scripts in tests/real use, and the Debian packages that have them.
REAL_NEEDS := cc:gcc fusermount3:fuse3 mkfs.ext4:e2fsprogs setfattr:attr setfacl:acl strace fio git sqlite3 rsync python3 \
	smbd:samba smbpasswd:samba-common-bin smbclient:smbclient zfs-fuse:zfs-fuse \
	syncoid:sanoid mbuffer faketime restic borg:borgbackup \
	mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs setpriv:util-linux dpkg-deb:dpkg objcopy:binutils systemd-analyze:systemd

peers:
	@scripts/need.sh gcc:gcc pkg-config:pkg-config fusermount3:fuse3 fio:fio git:git mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs
	@[ -e /usr/include/fuse3 ] || scripts/need.sh passthrough_ll:libfuse3-dev
	$(CARGO) build --release --locked -p larder-app -p larder-benches
	$(CARGO_TARGET_DIR)/release/peers --dir $(DIR) --size $(SIZE) $(PEERS)

ageing:
	@scripts/need.sh losetup:mount mkfs.btrfs:btrfs-progs zfs-fuse:zfs-fuse fusermount3:fuse3
	$(CARGO) build --release --locked -p larder-app -p larder-benches
	$(CARGO_TARGET_DIR)/release/ageing --dir $(DIR) --mib $(MIB) --cap $(CAP) --cells '$(CELLS)' $(AGEING) \
		--version-told "$$(git describe --always --dirty 2>/dev/null || echo 'of no commit')"

dedup:
	@scripts/need.sh fusermount3:fuse3 mkfs.ext4:e2fsprogs tar:tar borg:borgbackup restic:restic zfs-fuse:zfs-fuse
	$(CARGO) build --release --locked -p larder-app -p larder-benches
	$(CARGO_TARGET_DIR)/release/dedup --dir $(DIR) $(DEDUP)

dedupe:
	@scripts/need.sh losetup:mount mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs duperemove:duperemove
	$(CARGO) build --release --locked -p larder-app -p larder-benches
	$(CARGO_TARGET_DIR)/release/dedupe --dir $(DIR) $(DEDUPE)

survival:
	@scripts/need.sh fio:fio
	$(CARGO) build --release --locked -p larder-benches --bin survival
	$(CARGO_TARGET_DIR)/release/survival --dir $(DIR) $(SURVIVAL)

# Every count in full. Each part can be run alone, hours apart, on one commit: `make soak-PART`.
SOAK := tests cuts seeds torture schedules mutants real survival
SOAKED := $(addprefix soak-,$(SOAK))
.PHONY: $(SOAKED)
SOAK_TEST = $(CARGO) test --release --workspace --locked

soak: lint $(SOAKED)

$(SOAKED): export LARDER_FULL := 1
$(SOAKED): export LARDER_LARGE := 1

soak-tests:
	$(SOAK_TEST)

soak-cuts: export LARDER_CUTS := 1000000
soak-cuts:
	$(SOAK_TEST) --test volume simulation -- --nocapture

soak-seeds: export LARDER_SEEDS := 200000
soak-seeds:
	$(SOAK_TEST) --test reclaim -- --nocapture
	LARDER_EVERYTHING=20000 $(SOAK_TEST) --test everything meets -- --nocapture

soak-torture: export LARDER_TORTURE := 20000
soak-torture: export LARDER_SUBSETS := all
soak-torture: export LARDER_FLIPS := 1000000000
soak-torture:
	$(SOAK_TEST) --test torture -- --nocapture

# With the checks of a debug build: the order of locks is one of them.
soak-schedules: export LARDER_SCHEDULES := 300000
soak-schedules:
	CARGO_PROFILE_DEV_OPT_LEVEL=3 $(CARGO) test --workspace --locked --test schedules -- --nocapture

soak-mutants: mutants

soak-real: export KILLS := 200
soak-real: export FILES := 300000
soak-real: export FSYNCS := 5000
soak-real: export FSX_SEEDS := 10
soak-real: export FSX_OPS := 100000
soak-real: export DEDUPE_ROUNDS := 1000
soak-real: export STEPS := 100000
soak-real: export ROUNDS := 10
soak-real: export COPY_GIB := 20
soak-real: export SECONDS_OF_WRITES := 60
soak-real: export NAMES := 1000000
soak-real: export WANTED := 10000
soak-real: export CROWD_MIB := 400
soak-real: export SEEDS := 5
soak-real: export PAIRS := 15
soak-real: export TREES := /usr
soak-real: export TREES_CARGO := 1
soak-real: real

soak-survival:
	@$(MAKE) --no-print-directory survival SURVIVAL=

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile
