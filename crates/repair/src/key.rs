//! The key of a pool of which no label is left: commit records bring it, with a sum that needs no key.
//!
//! A record alone proves nothing: a file may have one as its content, with blocks and descriptors that are right by the
//! key in it. It may be the image of a disk of another pool, or made up. So a key counts only where no file's content
//! can lie: at the starts of slots. How large slots are is not known yet, but not larger than a pool of such devices
//! has them ([`slot_size`], which is a power of two): each place at a multiple of that from the first slot on is the
//! start of one, whatever their size, and a file's bytes are never there. *The key must prove more descriptors at
//! these places than there are that look like one and no key proves.* Where several do, the disks were of one pool
//! after the other, and somebody has to say which is meant.
//!
//! Where slots start depends on the pool's alignment, which the record says. One that is made up can lie about it, and
//! have its places up to 60 KiB behind the starts of slots. There it meets the descriptors that are at these: it is
//! refused, or one of several, unless most of them are lost.

use crate::read::{Unread, read_all_there_is};
use larder_device::Device;
use larder_format::block::{self, BLOCK_MAGIC, BLOCK_OVERHEAD, BlockHeader, BlockKind, CodecKind};
use larder_format::checksum::{PoolKey, Sums};
use larder_format::commit_record::{COMMIT_RECORD_MAX, CommitRecord};
use larder_format::label::{MAX_ASHIFT, MIN_ASHIFT};
use larder_format::segment::{DESCRIPTOR_LEN, SEGMENT_MAGIC, check_descriptor};
use larder_format::{BLOCK_STEP, ByteLen, PoolGuid};
use larder_pool::create::{data_start, slot_size};
use larder_store::codec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Bytes that are looked through at once, and how far a record may reach behind them.
const PIECE: usize = 4 << 20;
const BEHIND: usize = (COMMIT_RECORD_MAX + BLOCK_OVERHEAD as usize).next_multiple_of(4096);
/// The first bytes of the block of a record.
const BEGINNING: [u8; 5] = {
    let [a, b, c, d] = BLOCK_MAGIC.to_le_bytes();
    [a, b, c, d, BlockKind::CommitRecord as u8]
};
/// Keys that are remembered as wrong at most: others are looked at again each time.
const REFUSED: usize = 1 << 16;
/// Starts of slots of a device that are asked at most.
const STARTS: usize = 256;

/// Bytes that look like a descriptor, where there is one, by the alignment of the pool that has it there.
type Starts = Vec<(u8, Vec<u8>)>;

/// A pool whose key was found: its newest record.
pub(crate) type Known = BTreeMap<(PoolGuid, PoolKey), CommitRecord>;

/// Pools whose keys the devices themselves prove. `shown` is told of the bytes that were looked through, and of how
/// many.
pub(crate) fn find(devices: &[Arc<dyn Device>], unread: &Unread, shown: &dyn Fn(u64, u64)) -> Known {
    let largest = devices.iter().map(|device| device.size()).max().unwrap_or(ByteLen::new(0));
    let starts: Starts = devices.iter().flat_map(|device| starts_of(device, largest, unread)).collect();
    let mut found: BTreeMap<_, (CommitRecord, usize)> = BTreeMap::new();
    let mut refused = BTreeSet::new();
    let mut proven: BTreeSet<usize> = BTreeSet::new();
    let of = devices.iter().map(|device| device.size().get()).sum();
    let mut before = 0;
    for device in devices {
        for at in (0..device.size().get()).step_by(PIECE) {
            shown(before + at, of);
            let bytes = read_all_there_is(device, at, PIECE + BEHIND, unread);
            let steps = bytes[..PIECE].chunks_exact(BLOCK_STEP as usize);
            for (number, _) in steps.enumerate().filter(|(_, step)| step.starts_with(&BEGINNING)) {
                let Some(record) = record_at(&bytes[number * BLOCK_STEP as usize..]) else { continue };
                let key = (record.pool, record.label.key);
                if refused.contains(&key) {
                    continue;
                }
                if let Some((newest, _)) = found.get_mut(&key) {
                    if record.commit > newest.commit {
                        *newest = record;
                    }
                    continue;
                }
                let right = proven_by(&starts, &record);
                if right.is_empty() {
                    if refused.len() < REFUSED {
                        refused.insert(key);
                    }
                    continue;
                }
                found.insert(key, (record, right.len()));
                proven.extend(right);
            }
        }
        before += device.size().get();
    }
    let nobodys = starts.len() - proven.len();
    let known = found.into_iter().filter(|(_, (_, right))| *right > nobodys);
    known.map(|(key, (record, _))| (key, record)).collect()
}

/// The record in a block, right by the key that it brings itself.
fn record_at(bytes: &[u8]) -> Option<CommitRecord> {
    let header = BlockHeader::get(bytes)?;
    let (logical, payload) = (header.logical as usize, header.payload as usize);
    if logical > COMMIT_RECORD_MAX || payload > COMMIT_RECORD_MAX {
        return None;
    }
    let stored = bytes.get(BlockHeader::SIZE..BlockHeader::SIZE + payload)?;
    let plain = codec::decompress(CodecKind::from_byte(header.codec).ok()?, stored, logical).ok()?;
    let record = CommitRecord::check(&plain).ok()?;
    block::check_any(&Sums::new(record.pool, record.label.key), bytes).ok()?;
    Some(record)
}

fn starts_of(device: &Arc<dyn Device>, largest: ByteLen, unread: &Unread) -> Starts {
    let (mut starts, step) = (Starts::new(), u64::from(slot_size(largest.get())));
    for ashift in MIN_ASHIFT..=MAX_ASHIFT {
        let places = (data_start(ashift).get()..device.size().get()).step_by(step as usize);
        let looks = places.filter_map(|at| {
            let bytes = read_all_there_is(device, at, DESCRIPTOR_LEN as usize, unread);
            bytes.starts_with(&SEGMENT_MAGIC.to_le_bytes()).then(|| (ashift, bytes.to_vec()))
        });
        starts.extend(looks.take(STARTS));
    }
    starts
}

/// Numbers of the descriptors that a record's key proves.
fn proven_by(starts: &Starts, record: &CommitRecord) -> Vec<usize> {
    let sums = Sums::new(record.pool, record.label.key);
    let is_right = |(ashift, bytes): &(u8, Vec<u8>)| {
        *ashift == record.label.ashift && check_descriptor(&sums, bytes).is_ok()
    };
    starts.iter().enumerate().filter(|(_, start)| is_right(start)).map(|(number, _)| number).collect()
}
