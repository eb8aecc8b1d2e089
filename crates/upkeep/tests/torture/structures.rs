//! Places of the structures on the devices of a pool.

use larder_format::label::{HEARTBEAT_OFFSET, LABEL_LEN, RING_SLOT, RING_SLOTS};
use larder_format::root::{Root, ring_slot};
use larder_format::segment::{
    DESCRIPTOR_LEN, Layout, SegmentKind, SegmentRecord, SegmentState, StripeHeader, stripe_header_len,
};
use larder_format::{ByteLen, CommitId, DeviceOffset, SegmentId};
use larder_pool::Pool;
use larder_pool::member::Member;
use larder_sim::{DeviceImage, SimWorld};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A kind of thing on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Structure {
    Label,
    Heartbeat,
    Root,
    Descriptor,
    StripeHeader,
    Data,
    Parity,
    Small,
    Node,
    Run,
    Table,
    Log,
}

impl Structure {
    pub const ALL: [Self; 12] = [
        Self::Label,
        Self::Heartbeat,
        Self::Root,
        Self::Descriptor,
        Self::StripeHeader,
        Self::Data,
        Self::Parity,
        Self::Small,
        Self::Node,
        Self::Run,
        Self::Table,
        Self::Log,
    ];
}

/// One of them: some bytes of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub what: Structure,
    /// The device's index in the pool.
    pub device: usize,
    pub at: DeviceOffset,
    pub len: usize,
    /// The stripe that it is a part of, if it is one of a stripe.
    pub stripe: Option<StripePart>,
}

/// A column of a stripe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StripePart {
    pub segment: SegmentId,
    pub offset: u32,
    pub layout: Layout,
    pub column: usize,
}

/// Everything that the newest commit of a pool has on its devices. Where stripes
/// lie is told by any of their columns.
pub fn structures(pool: &Pool, sim: &SimWorld) -> Vec<Piece> {
    let members: Vec<_> = pool.store().members().iter().collect();
    let image = |member: &Arc<Member>| number_of(&member.name()).map(|device| sim.device(device).image());
    let images: Vec<Option<DeviceImage>> = members.iter().map(image).collect();
    let mut pieces = Vec::new();
    let roots = roots(pool, sim);
    for member in &members {
        let device = usize::from(member.index.get());
        let areas = member.label_areas();
        let beat = areas[0] + ByteLen::new(HEARTBEAT_OFFSET);
        pieces.push(Piece { what: Structure::Heartbeat, device, at: beat, len: LABEL_LEN, stripe: None });
        for area in areas {
            pieces.push(Piece { what: Structure::Label, device, at: area, len: LABEL_LEN, stripe: None });
            // The newest fifteen; what lies behind a root in its place says nothing.
            let newest = pool.store().durable_commit().get();
            for commit in (1..=newest).rev().take(RING_SLOTS as usize) {
                let at = ring_slot(area, CommitId::new(commit));
                let root = roots.get(&commit).map_or(RING_SLOT, Vec::len);
                pieces.push(Piece { what: Structure::Root, device, at, len: root, stripe: None });
            }
        }
    }
    let committed = |segment: &&SegmentRecord| {
        segment.state != SegmentState::Freed && segment.birth <= pool.store().durable_commit()
    };
    for segment in pool.store().segments().iter().filter(committed) {
        let spot = |column: usize, within: u32| {
            let slot = segment.slots[column];
            let member = pool.store().members().get(slot.device);
            (usize::from(slot.device.get()), member.slot_offset(slot.index, within))
        };
        let columns = segment.layout.columns();
        let slot_size = pool.store().members().get(segment.slots[0].device).slot_size;
        let read_header = |column: usize, offset: u32| {
            let (device, at) = spot(column, offset);
            let number = members.iter().position(|member| usize::from(member.index.get()) == device)?;
            let image = images[number].as_ref().filter(|image| at.get() + 4096 <= image.size().get())?;
            let stripe = StripeHeader::check(pool.store().sums(), &image.read(at, 4096)).ok()?;
            (stripe.segment == segment.id && stripe.offset == offset && stripe.height > 0).then_some(stripe)
        };
        for column in 0..columns {
            let (device, at) = spot(column, 0);
            pieces.push(Piece {
                what: Structure::Descriptor,
                device,
                at,
                len: DESCRIPTOR_LEN as usize,
                stripe: None,
            });
        }
        // The heights of log segments do not tell where their stripes end.
        let end = if segment.kind == SegmentKind::Log { slot_size } else { segment.height };
        let mut offset = DESCRIPTOR_LEN;
        while offset < end {
            // A device that lost a write may hold a stripe that a power cut undid.
            let headers = (0..columns).filter_map(|column| read_header(column, offset));
            let Some(stripe) = headers.max_by_key(|stripe| stripe.commit) else {
                assert!(segment.kind == SegmentKind::Log, "no header of a stripe of {segment:?} at {offset}");
                break;
            };
            // Later stripes are of no commit yet.
            if stripe.commit > pool.store().durable_commit() && segment.kind != SegmentKind::Log {
                break;
            }
            let header = stripe_header_len(columns);
            for column in 0..columns {
                let (device, at) = spot(column, offset);
                let part = Some(StripePart { segment: segment.id, offset, layout: segment.layout, column });
                let body = at + ByteLen::new(header.into());
                pieces.push(Piece {
                    what: Structure::StripeHeader,
                    device,
                    at,
                    len: header as usize,
                    stripe: part,
                });
                let what = body_of(segment, column);
                pieces.push(Piece {
                    what,
                    device,
                    at: body,
                    len: (stripe.height - header) as usize,
                    stripe: part,
                });
            }
            offset += stripe.height;
        }
    }
    pieces
}

/// The roots that some device holds, by commit.
fn roots(pool: &Pool, sim: &SimWorld) -> BTreeMap<u64, Vec<u8>> {
    let mut roots = BTreeMap::new();
    for member in pool.store().members().iter() {
        let Some(image) = number_of(&member.name()).map(|device| sim.device(device).image()) else {
            continue;
        };
        for area in member.label_areas() {
            for place in 0..RING_SLOTS {
                let at = ring_slot(area, CommitId::new(place));
                let inside = at.get() + RING_SLOT as u64 <= image.size().get();
                let root = inside
                    .then(|| Root::check(pool.store().sums(), &image.read(at, RING_SLOT)).ok())
                    .flatten();
                if let Some(root) = root {
                    roots.insert(
                        root.commit.get(),
                        root.encode(pool.store().sums()).expect("it fitted before"),
                    );
                }
            }
        }
    }
    roots
}

fn body_of(segment: &SegmentRecord, column: usize) -> Structure {
    match segment.kind {
        SegmentKind::Data if column >= segment.layout.k() * segment.layout.r() => Structure::Parity,
        SegmentKind::Data => Structure::Data,
        SegmentKind::Small => Structure::Small,
        SegmentKind::Node => Structure::Node,
        SegmentKind::Run => Structure::Run,
        SegmentKind::Table => Structure::Table,
        SegmentKind::Log => Structure::Log,
    }
}

/// The number of a simulated device, by its name.
pub fn number_of(name: &str) -> Option<usize> {
    name.strip_prefix("sim")?.parse().ok()
}
