//! Processor seconds a GiB, stage by stage, on the way down and up again.
//!
//! `cargo run --release -p larder-benches --bin stages -- FOLDER` (see benches/README.md). Each stage is
//! done by itself, in one thread, over the same records; then the engine does all of them, without FUSE,
//! on files in FOLDER (at most 2.5 times `--mib` at a time, removed again).

use clap::Parser;
use larder_benches::content::Content;
use larder_benches::device::{sparse_file, write_all};
use larder_benches::{MIB, gb_per_s, no_op, pool_in, process, record, timing};
use larder_device::{ALIGN, Entropy, FileDevice, OpenMode, SeededEntropy};
use larder_format::block::{self, BLOCK_OVERHEAD, BlockInfo, BlockKind, CodecKind, Stamp};
use larder_format::checksum::{ChecksumKind, KEY_LEN, PoolKey, Sums, payload_sum};
use larder_format::items::Extent;
use larder_format::segment::{DESCRIPTOR_LEN, SegmentKind, SegmentRecord, SegmentState, Slot};
use larder_format::{
    BlockId, BlockPtr, CommitId, DatasetId, DeviceIndex, GroupIndex, Incarnation, PoolGuid, SegmentId,
    SlotIndex,
};
use larder_pool::Pool;
use larder_pool::codec::{self, Codec};
use larder_pool::create::rule_for;
use larder_pool::segments::{Segment, SegmentEntry};
use larder_pool::space::STRIPE_TARGET;
use larder_pool::stripe::{self, Encoded};
use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use tempfile::TempDir;

/// Measures each stage of writing and reading by itself.
#[derive(Debug, Parser)]
struct Args {
    /// Where the devices lie
    folder: PathBuf,
    /// Mebibytes that each stage handles
    #[arg(long, default_value_t = 512)]
    mib: usize,
}

const RECORD: usize = 128 << 10;
/// Reads of the whole and of parts take turns, so many of each.
const TURNS: usize = 8;
static SUMS: LazyLock<Sums> =
    LazyLock::new(|| Sums::new(PoolGuid::new(0x1234_5678_9abc_def0), PoolKey::new([0x7e; KEY_LEN])));
const STAMP: Stamp = Stamp { id: BlockId::new(7), incarnation: Incarnation::new(3), birth: CommitId::new(1) };
const INFO: BlockInfo = BlockInfo {
    kind: BlockKind::Record,
    codec: CodecKind::Off,
    checksum: ChecksumKind::Fast,
    framed: true,
    level: 0,
    logical: RECORD as u32,
    dataset: DatasetId::new(1),
    object: 1,
    offset: 0,
    key_kind: 0,
};
/// Layouts by word and number of devices.
const LAYOUTS: [(&str, usize); 4] = [("single", 1), ("mirror", 2), ("raidz2", 6), ("raid14", 9)];

fn main() {
    let args = Args::parse();
    let bytes = args.mib * MIB;
    println!(
        "{} MiB in records of {} KiB; seconds are of processors, a GiB of plain data",
        args.mib,
        RECORD >> 10
    );
    println!("stage                          seconds a GiB    GB/s (wall)");
    for content in [Content::Random, Content::Text] {
        let source = content.bytes(32 * MIB);
        by_record(content, &source, bytes);
    }
    let random = Content::Random.bytes(32 * MIB);
    stripes(&random, bytes);
    devices(&args, &random);
    fuse(&random, args.mib);
    for content in [Content::Random, Content::Text] {
        let source = content.bytes(32 * MIB);
        for codec in [Codec::Off, Codec::Lz4] {
            for (word, devices) in [("single", 1), ("raidz2", 6)] {
                engine(&args, (content, &source), codec, (word, devices));
            }
        }
    }
}

/// Runs `work` over `bytes` bytes and prints a line; gives what `work` gives.
fn stage<T>(name: &str, bytes: usize, work: impl FnOnce() -> T) -> T {
    let before = process::own_cpu_time();
    let (result, time) = timing(work);
    let used = process::own_cpu_time() - before;
    let per_gib = used.as_secs_f64() * (1 << 30) as f64 / bytes as f64;
    println!("{name:30} {per_gib:12.3} {:14.2}", gb_per_s(bytes, time));
    result
}

/// Calls `each` for every record of `bytes` bytes.
fn over(source: &[u8], bytes: usize, mut each: impl FnMut(&[u8])) {
    source.chunks_exact(RECORD).cycle().take(bytes / RECORD).for_each(&mut each);
}

/// Stages of a single record: copies, sums, frames, codecs.
fn by_record(content: Content, source: &[u8], bytes: usize) {
    let name = |stage: &str| format!("{stage}, {}", content.name());
    if content == Content::Random {
        let mut kept = vec![0; RECORD];
        stage("copy into a buffer kept", bytes, || {
            over(source, bytes, |record| {
                kept.copy_from_slice(record);
                black_box(&kept);
            });
        });
        stage("copy into a new buffer", bytes, || {
            over(source, bytes, |record| {
                black_box(record.to_vec());
            });
        });
        stage("zeroed buffer, then copy", bytes, || {
            over(source, bytes, |record| {
                let mut fresh = vec![0; RECORD + 1];
                black_box(&mut fresh)[1..].copy_from_slice(record);
                black_box(fresh);
            });
        });
        for kind in [ChecksumKind::Fast, ChecksumKind::Blake3, ChecksumKind::Sha256] {
            stage(&format!("sum, {kind:?}"), bytes, || {
                over(source, bytes, |record| {
                    black_box(payload_sum(kind, &SUMS, record));
                });
            });
        }
        stage("sums of frames, Fast", bytes, || {
            over(source, bytes, |record| {
                black_box(payload_sum(ChecksumKind::Fast, &SUMS, &block::frame_sums(&SUMS, record)));
            });
        });
        let mut out = vec![0; BLOCK_OVERHEAD as usize + RECORD];
        stage("frame, without the sum", bytes, || {
            over(source, bytes, |record| {
                black_box(block::encode(&SUMS, &STAMP, &INFO, [0; 32], record, &mut out));
            });
        });
        let stored = framed(&source[..RECORD]);
        stage("check of a stored block", bytes, || {
            for _ in 0..bytes / RECORD {
                black_box(block::check(&SUMS, STAMP.id, black_box(&stored)).expect("our own block"));
            }
        });
    }
    for codec in [Codec::Lz4, Codec::Zstd(1), Codec::Zstd(3)] {
        let mut plain = vec![0; RECORD];
        let mut packed = Vec::new();
        stage(&name(&format!("{codec}")), bytes, || {
            over(source, bytes, |record| {
                let payload = codec::compress(codec, record);
                packed.extend(payload.filter(|_| packed.len() < 64));
            });
        });
        if !packed.is_empty() {
            stage(&name(&format!("{codec} back")), bytes, || {
                for payload in packed.iter().cycle().take(bytes / RECORD) {
                    codec::decompress_into(codec.kind(), payload, &mut plain).expect("our own payload");
                }
            });
        }
    }
}

/// Packing, parity and sums of stripes.
fn stripes(source: &[u8], bytes: usize) {
    let blocks = source.chunks_exact(RECORD).map(|record| Encoded::Whole(framed(record).into()));
    let blocks: Vec<Encoded> = blocks.collect();
    for (word, devices) in LAYOUTS {
        let segment = segment(word, devices);
        let footprints: Vec<u32> = blocks.iter().map(|block| stripe::footprint(block.len())).collect();
        let plan = stripe::plan(
            segment.layout,
            ALIGN as u32,
            64 << 20,
            STRIPE_TARGET,
            &footprints,
            stripe::anywhere,
        )
        .expect("a stripe");
        let in_stripe = plan.spots.len();
        let stamp = (STAMP.birth, STAMP.incarnation);
        stage(&format!("stripe: {word}, {devices} devices"), bytes, || {
            for _ in 0..bytes / (in_stripe * RECORD) {
                black_box(stripe::build(&SUMS, &segment, DESCRIPTOR_LEN, stamp, &plan, &blocks[..in_stripe]));
            }
        });
    }
}

fn framed(record: &[u8]) -> Vec<u8> {
    let frames = block::frame_sums(&SUMS, record);
    let payload = [&frames, record].concat();
    let mut out = vec![0; BLOCK_OVERHEAD as usize + payload.len()];
    block::encode(&SUMS, &STAMP, &INFO, payload_sum(ChecksumKind::Fast, &SUMS, &frames), &payload, &mut out);
    out
}

fn segment(word: &str, devices: usize) -> Arc<Segment> {
    let layout = rule_for(word, devices).expect("enough devices").layout;
    let slot = |i| Slot { device: DeviceIndex::new(i as u16), index: SlotIndex::new(0) };
    let record = SegmentRecord {
        id: SegmentId::new(1),
        kind: SegmentKind::Data,
        state: SegmentState::Open,
        group: GroupIndex::new(0),
        layout,
        height: DESCRIPTOR_LEN,
        live_blocks: 0,
        live_bytes: 0,
        birth: STAMP.birth,
        freed: CommitId::new(0),
        incarnation: STAMP.incarnation,
        placed: 0,
        closed_at: BlockId::new(0),
        class: 0,
        copy: 0,
        unnamed: false,
        filled: CommitId::new(0),
        verified: 0,
        slots: (0..layout.columns()).map(slot).collect(),
    };
    SegmentEntry::from_record(&record).segment
}

/// The device alone.
fn devices(args: &Args, source: &[u8]) {
    let folder = TempDir::with_prefix_in("larder-bench-", &args.folder).expect("the folder can be written");
    let path = folder.path().join("device");
    sparse_file(&path, (args.mib * MIB) as u64);
    let device = FileDevice::open(&path, OpenMode::Exclusive).expect("the file can be used");
    stage("device: 1 MiB writes, flush", args.mib * MIB, || write_all(&device, source, args.mib));
}

/// FUSE alone: this process writes to a mount that it serves itself and that forgets everything.
fn fuse(source: &[u8], mib: usize) {
    let folder = TempDir::new().expect("a folder for the mount");
    let mounted = no_op::mount(folder.path());
    let path = folder.path().join("file");
    stage("FUSE: 1 MiB writes, both ends", mib * MIB, || {
        let mut file = File::create(&path).expect("a file can be made");
        source
            .chunks_exact(MIB)
            .cycle()
            .take(mib)
            .for_each(|block| file.write_all(block).expect("it is taken"));
    });
    let path = folder.path().join("unread");
    File::create(&path).and_then(|file| file.set_len((mib * MIB) as u64)).expect("a size");
    stage("FUSE: reads, both ends", mib * MIB, || {
        std::io::copy(&mut File::open(&path).expect("it is there"), &mut std::io::sink()).expect("zeros");
    });
    mounted.unmount().expect("nobody is in it");
}

/// The engine without files: store and commit, then reads from the devices.
fn engine(args: &Args, (content, source): (Content, &[u8]), codec: Codec, (word, devices): (&str, usize)) {
    let folder = TempDir::with_prefix_in("larder-bench-", &args.folder).expect("the folder can be written");
    let k = rule_for(word, devices).expect("enough devices").layout.k();
    let size = (args.mib * MIB / k) as u64 * 2 + (1 << 30);
    let pool = pool_in(folder.path(), word, devices, size);
    let bytes = args.mib * MIB;
    let name = |what: &str| format!("{what}: {word} {codec} {}", content.name());
    let mut stored: Vec<BlockPtr> = Vec::new();
    stage(&name("store"), bytes, || {
        // As the layer above does: 32 MiB at a time.
        let mut left = bytes / RECORD;
        while left > 0 {
            let batch: Vec<_> =
                source.chunks_exact(RECORD).take(left).map(|plain| record(plain.to_vec(), codec)).collect();
            left -= batch.len();
            stored.extend(pool.store_records(&pool.enter().expect("writable"), batch).expect("room"));
        }
        pool.commit().expect("a commit");
    });
    pool.store().drop_caches();
    stage(&name("read"), bytes, || {
        for pointers in stored.chunks(8) {
            pool.store().prefetch(pointers);
            pointers.iter().for_each(|&ptr| drop(black_box(pool.store().read(ptr).expect("it is there"))));
        }
    });
    if content == Content::Random {
        at_random(&name("4 KiB"), &pool, stored);
    }
}

/// Small pieces of records, none of which is in the cache: of the record as a whole and alone, by turns, each time of
/// other records.
fn at_random(name: &str, pool: &Pool, mut stored: Vec<BlockPtr>) {
    const PIECE: u32 = 4 << 10;
    let read_bytes = || -> u64 {
        pool.store().members().iter().map(|member| member.counters.read_bytes.load(Ordering::Relaxed)).sum()
    };
    let rng = SeededEntropy::new(1);
    stored.sort_by_cached_key(|_| rng.next_u64());
    let (mut turns, mut bytes) = ([Vec::new(), Vec::new()], [0, 0]);
    let per_turn = (stored.len() / (2 * TURNS)).max(1);
    for (turn, records) in stored.chunks(per_turn).take(2 * TURNS).enumerate() {
        pool.store().drop_caches();
        let before = read_bytes();
        let (_, time) = timing(|| {
            for &ptr in records {
                let at = rng.next_u64() as u32 % (RECORD as u32 / PIECE) * PIECE;
                let (len, logical) = (RECORD as u32, RECORD as u32);
                let extent = Extent { ptr, len, block_offset: 0, logical, placed: 0, copies: 1 };
                let piece = if turn % 2 == 0 {
                    pool.store().read(ptr).map(|record| record.slice(at as usize..(at + PIECE) as usize))
                } else {
                    pool.store().part_of(&extent, at..at + PIECE)
                };
                black_box(piece.expect("it is there"));
            }
        });
        turns[turn % 2].push(time.as_secs_f64() * 1e6 / records.len() as f64);
        bytes[turn % 2] += (read_bytes() - before) / records.len() as u64;
    }
    for (how, (of, bytes)) in ["of all", "alone"].into_iter().zip(turns.iter_mut().zip(bytes)) {
        of.sort_by(f64::total_cmp);
        let bytes = (bytes / of.len() as u64) >> 10;
        println!("{:30} {:9.1} us a piece, {bytes} KiB read", format!("{name}, {how}"), of[of.len() / 2]);
    }
}
