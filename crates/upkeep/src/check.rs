//! The whole check: every block, every reference, every stripe on every device, every slot.
//!
//! It marks as garbage collection does, but reads everything and frees nothing (see [`crate::gc`]): the walk enters
//! every tree whole and reads every record, commit records are read beside it, the sweep adds up what the map says of
//! each segment. Then come the pool's tables, the stripes on the devices, and who owns each slot.
//!
//! It holds against the committed state, so it must run on a pool without uncommitted changes: after import, or
//! after a commit with nobody inside. It reads past the cache, and what it knows of each block is in memory: some
//! 200 B a block.

use crate::gc::deep::{AliasWalk, MemoryPages, Met, Spill, Sweep, Tag, TreeWalk, Verdict, Visitor, expects};
use larder_device::ALIGN;
use larder_format::block::BlockKind;
use larder_format::checksum::fast128;
use larder_format::commit_record::CommitRecordEntry;
use larder_format::items::Extent;
use larder_format::node::Key;
use larder_format::run::Marks;
use larder_format::segment::{
    DESCRIPTOR_LEN, SegmentKind, SegmentRecord, SegmentState, Slot, StripeHeader, check_descriptor,
    stripe_header_len,
};
use larder_format::{BlockId, BlockPtr, DatasetId, Fingerprint, Place, SegmentId, SlotIndex};
use larder_pool::Pool;
use larder_pool::pins::{Pinned, PinnedTree};
use larder_sorted::map::{Entry, Location};
use larder_store::{Result, RunIo, Store};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::ControlFlow;

/// Memory for what the walk has waiting and for ids before they are packed, bytes.
const MEMORY: usize = 16 << 20;
/// Blocks that are judged at once.
const ENTRIES: usize = 4096;

/// Report of a check.
#[derive(Debug, Default)]
pub struct Report {
    /// Sentences, one a problem; none when all is well.
    pub problems: Vec<String>,
    /// Blocks read and verified.
    pub blocks: u64,
    /// Records that trees refer to, each once.
    pub records: u64,
    /// Blocks that wait in the free queue.
    pub dead: u64,
    /// Blocks that nothing refers to and that are left to GC.
    pub unreachable: u64,
    /// Stripes verified, each on all its devices.
    pub stripes: u64,
    /// Slots accounted for.
    pub slots: u64,
    /// Blocks that the dedup index should know and does not; none counted while it catches up.
    pub unindexed: u64,
    /// Fingerprints that the dedup index leads elsewhere than to a block with that content.
    pub stale: u64,
}

/// Live places by segment.
type LivePlaces = HashMap<SegmentId, Vec<Place>>;

/// A block that trees refer to.
struct Seen {
    /// Where the first hint says that it is, unless hints there are stale.
    place: Option<Place>,
    /// The family and dataset of the first tree, and below which id it has what others in the family have.
    of: (DatasetId, DatasetId, BlockId),
    /// It has references that no snapshot explains.
    shared: bool,
    /// The fingerprint of what it holds, when it was read and some blocks have theirs in the map.
    print: Option<Fingerprint>,
}

/// An alias in the map.
struct AliasSeen {
    to: BlockId,
    /// That is a block with places.
    is_sound: bool,
}

/// A visitor that reads and verifies everything.
struct Deep<'a> {
    pool: &'a Pool,
    report: Report,
    live: Spill,
    pages: MemoryPages,
    seen: HashMap<BlockId, Seen>,
    /// Blocks by the tree that refers to them.
    trees: HashSet<(u32, BlockId)>,
    /// Footprints of what trees name, by member, and of that what is inherited.
    sums: Vec<(u64, u64)>,
    /// Some blocks have a fingerprint in the map.
    printed: bool,
}

impl Deep<'_> {
    fn see(&mut self, member: &PinnedTree, ptr: BlockPtr) {
        let again = !self.trees.insert((member.number, ptr.id));
        let stale = self.pool.store().core.lock().hint_is_stale(ptr.place.segment);
        let place = (!stale).then_some(ptr.place);
        let seen = self.seen.entry(ptr.id).or_insert(Seen {
            place,
            of: (member.family, member.lineage, member.inherited_below),
            shared: false,
            print: None,
        });
        let (family, lineage, below) = seen.of;
        let is_inherited = family == member.family && ptr.id <= below.max(member.inherited_below);
        seen.shared |= again || (lineage != member.lineage && !is_inherited);
        if let (Some(here), Some(there)) = (place, seen.place)
            && here != there
        {
            self.report.problems.push(format!("block {} is at two places", ptr.id));
        }
    }

    /// A commit record, which no tree refers to.
    fn commit_record(&mut self, entry: &CommitRecordEntry) -> Result<()> {
        let (ptr, none) = (entry.ptr, DatasetId::new(0));
        let stale = self.pool.store().core.lock().hint_is_stale(ptr.place.segment);
        let place = (!stale).then_some(ptr.place);
        let seen = Seen { place, of: (none, none, BlockId::new(0)), shared: false, print: None };
        if self.seen.insert(ptr.id, seen).is_some() {
            self.report.problems.push(format!("commit record {} is referred to by a tree", ptr.id));
        }
        self.report.blocks += 1;
        if let Err(error) = self.pool.read_commit_record(entry) {
            self.report.problems.push(format!("commit record {}: {error}", ptr.id));
        }
        self.push(ptr.id, 0)
    }

    fn push(&mut self, id: BlockId, logical: u32) -> Result<()> {
        if self.live.is_full(1) {
            self.live.spill(&mut self.pages)?;
        }
        self.live.push(id, Tag::new(logical, 0));
        Ok(())
    }
}

impl Visitor for Deep<'_> {
    fn node(&mut self, member: &PinnedTree, ptr: BlockPtr, fresh: bool) -> Result<()> {
        self.see(member, ptr);
        if fresh {
            self.report.blocks += 1;
            self.push(ptr.id, 0)?;
        }
        Ok(())
    }

    fn extent(&mut self, member: &PinnedTree, key: &Key, extent: &Extent, met: Met) -> Result<()> {
        let ptr = extent.ptr;
        self.see(member, ptr);
        // Charged as it was written: moves keep the length, and an alias is charged for what it was.
        let charged = extent.charged();
        let sum = &mut self.sums[member.number as usize];
        sum.0 += charged;
        if member.inherited.is_some() && ptr.id <= member.inherited_below {
            sum.1 += charged;
        }
        if met == Met::Carried {
            return Ok(());
        }
        self.push(ptr.id, extent.logical)?;
        self.report.blocks += 1;
        let name = &member.name;
        match self.pool.store().read_plain(ptr, BlockKind::Record) {
            Ok((_, plain)) => {
                if self.printed
                    && let Some(seen) = self.seen.get_mut(&ptr.id)
                {
                    seen.print = Some(self.pool.fingerprint(&plain));
                }
                let covers = u64::from(extent.block_offset) + u64::from(extent.len) <= plain.len() as u64;
                if !covers || extent.logical as usize != plain.len() {
                    self.report.problems.push(format!("{name}: extent at {key:?} does not fit its block"));
                }
            }
            Err(error) => self.report.problems.push(format!("{name}: {key:?}: {error}")),
        }
        Ok(())
    }

    fn lost(&mut self, member: &PinnedTree, what: String) {
        self.report.problems.push(format!("{}: {what}", member.name));
    }
}

/// Checks the whole pool; see the module's text.
///
/// # Errors
/// Only when the check itself cannot go on; damage is in the report.
pub fn check(pool: &Pool) -> Result<Report> {
    let _commits_wait = pool.commit_turn();
    let nobody_enters = pool.keep_out();
    pool.store().complete_all_stripes()?;
    pool.store().cache.clear();
    let checker = Checker { pool, store: pool.store() };
    let mut pinned = pool.pin(&nobody_enters, pool.store().durable_commit());
    let members = std::mem::take(&mut pinned.members);
    let mut deep = Deep {
        pool,
        report: Report::default(),
        live: Spill::new(MEMORY),
        pages: MemoryPages::default(),
        seen: HashMap::new(),
        trees: HashSet::new(),
        sums: vec![(0, 0); members.len()],
        printed: pool.may_have_prints(),
    };
    for dataset in pool.trees() {
        if dataset.has_uncommitted() {
            let name = pool.tree_name(&dataset);
            let problem = format!("{name} has uncommitted changes: the check needs a quiet pool");
            deep.report.problems.push(problem);
        }
    }
    let mut walk = TreeWalk::new(members.clone(), BlockId::new(0), MEMORY, true);
    while walk.step(pool, &mut deep)? > 0 {}
    pinned.records.iter().try_for_each(|record| deep.commit_record(record))?;
    for (member, (sum, inherited)) in members.iter().zip(&deep.sums) {
        let name = &member.name;
        let mut differ = |what: &str, counted: u64, sum: u64| {
            if counted != sum {
                let problem = format!("{name} counts {counted} bytes {what}, its extents have {sum}");
                deep.report.problems.push(problem);
            }
        };
        differ("referenced", member.referenced, *sum);
        differ("inherited", member.inherited.unwrap_or(0), *inherited);
    }
    let mut places = checker.check_map(&mut deep, &pinned)?;
    let report = &mut deep.report;
    (report.unindexed, report.stale) = pool.check_index()?;
    checker.check_tables(&mut places, report)?;
    checker.check_segments(&places, report);
    Ok(deep.report)
}

/// The pool, for those parts of a check that take no walk.
struct Checker<'a> {
    pool: &'a Pool,
    store: &'a Store,
}

impl Checker<'_> {
    /// The map knows what trees refer to, where it is, and what is to be freed. Returns what it says of places.
    fn check_map(&self, deep: &mut Deep<'_>, pinned: &Pinned) -> Result<LivePlaces> {
        let Deep { report, live, pages, seen, .. } = deep;
        while live.join_all_step(pages, usize::MAX)? {}
        let aliases = self.aliases()?;
        self.follow(&aliases, live, pages, pinned)?;
        let targets: HashSet<BlockId> = aliases.values().map(|alias| alias.to).collect();
        let mut suspects = Spill::new(MEMORY);
        let ids = BlockId::new(0)..=pinned.horizon;
        let mut sweep = Sweep::new(live.read(pages)?, Spill::new(0).read(pages)?, ids);
        let mut places = LivePlaces::new();
        let freeing = self.pool.freeing();
        let queued = freeing.has_queued() || freeing.has_left_out() || self.pool.pins().progress().is_some();
        let mut judge = |id: BlockId, entry: Entry, verdict: Verdict<'_>| {
            for &place in entry.places() {
                places.entry(place.segment).or_default().push(place);
            }
            let (dead, shared) = (entry.marks.contains(Marks::DEAD), entry.marks.contains(Marks::SHARED));
            let mut problem = |text: &str| report.problems.push(format!("block {id} {text}"));
            if let [_, _, ..] = entry.places() {
                for (i, &place) in entry.places().iter().enumerate() {
                    if entry.places()[..i].iter().any(|other| other.segment == place.segment) {
                        problem("has two places in one segment");
                    }
                    if !dead && let Err(error) = self.store.read_at(BlockPtr { id, place }) {
                        problem(&format!("at {place:?}: {error}"));
                    }
                }
            }
            if dead && !queued {
                problem("is marked as dead, but the free queue is empty");
            }
            match verdict {
                Verdict::Live(references, _) => {
                    if targets.contains(&id) && !(shared && entry.marks.contains(Marks::ALIASED)) {
                        problem("has an alias, but is not marked so");
                    }
                    // Without a tree that names it.
                    let Some(seen) = seen.get(&id) else {
                        report.records += 1;
                        return Ok(());
                    };
                    let alias = aliases.get(&id);
                    if alias.is_some_and(|alias| !alias.is_sound) {
                        problem("is an alias of nothing, or of another alias");
                    }
                    let is_elsewhere = |place| alias.is_none() && !entry.places().contains(&place);
                    if seen.place.is_some_and(is_elsewhere) {
                        problem(&format!("is used at {:?}, the map says {:?}", seen.place, entry.location));
                    }
                    if seen.shared && !shared {
                        problem("is referred to twice, but not marked as shared");
                    }
                    if seen.print.zip(entry.print).is_some_and(|(is, in_map)| is != in_map) {
                        problem("has the fingerprint of something else");
                    }
                    if dead && !shared {
                        problem("is in use, but marked as dead");
                    }
                    let record = references.iter().any(|one| one.tag.logical() > 0);
                    if !record && references.iter().map(|one| one.count).sum::<u64>() > 1 {
                        problem("is a node in two places of a tree");
                    }
                    report.records += u64::from(record);
                }
                Verdict::Queued => report.dead += 1,
                Verdict::Spared | Verdict::Dead if dead => report.dead += 1,
                Verdict::Spared | Verdict::Dead if expects(pinned, entry.marks) => report.unreachable += 1,
                Verdict::Spared | Verdict::Dead => problem("is in the map, but nothing refers to it"),
            }
            Ok(())
        };
        while sweep.step(self.pool, pages, ENTRIES, &mut suspects, &mut judge)? {}
        while suspects.join_all_step(pages, usize::MAX)? {}
        let mut suspects = suspects.read(pages)?;
        while let Some(missing) = suspects.next(pages)? {
            let problem = format!("block {} is referred to, but the map does not know it", missing.id);
            report.problems.push(problem);
        }
        Ok(places)
    }

    /// All aliases that the map has.
    fn aliases(&self) -> Result<HashMap<BlockId, AliasSeen>> {
        let mut found = HashMap::new();
        if !self.store.core.lock().has_aliases() {
            return Ok(found);
        }
        let window = self.store.map.lock().window(BlockId::new(0), usize::MAX);
        window.visit(&RunIo::new(self.store), |id, entry| {
            if let Location::Alias(to) = entry.location {
                found.insert(id, AliasSeen { to, is_sound: false });
            }
            Ok(ControlFlow::Continue(()))
        })?;
        for alias in found.values_mut() {
            let target = self.store.look_up(alias.to, |look_up, io| look_up.location(io))?;
            alias.is_sound = matches!(target, Some(Location::Places(_)));
        }
        Ok(found)
    }

    /// Targets of aliases are alive while these are.
    fn follow(
        &self,
        aliases: &HashMap<BlockId, AliasSeen>,
        live: &mut Spill,
        pages: &mut MemoryPages,
        pinned: &Pinned,
    ) -> Result<()> {
        if aliases.is_empty() {
            return Ok(());
        }
        let mut walk = AliasWalk::new(live.peruse(pages)?, BlockId::new(0)..=pinned.horizon);
        let mut found = Vec::new();
        let mut refer = |id, tag| {
            found.push((id, tag));
            Ok(())
        };
        while walk.step(self.pool, pages, ENTRIES, |origin| Some(origin.into()), &mut refer)? {}
        for (id, tag) in found {
            if live.is_full(1) {
                live.spill(pages)?;
            }
            live.push(id, tag);
        }
        while live.join_all_step(pages, usize::MAX)? {}
        Ok(())
    }

    fn check_tables(&self, places: &mut LivePlaces, report: &mut Report) -> Result<()> {
        let nodes = self.pool.table_nodes()?;
        for ptr in nodes {
            places.entry(ptr.place.segment).or_default().push(ptr.place);
            report.blocks += 1;
        }
        Ok(())
    }

    fn check_segments(&self, live: &LivePlaces, report: &mut Report) {
        let mut runs: BTreeMap<SegmentId, (u32, u64)> = BTreeMap::new();
        let of_map: Vec<_> =
            self.store.map.lock().descriptors().flat_map(|run| run.footprints.clone()).collect();
        for footprint in of_map.into_iter().chain(self.pool.index_footprints().all()) {
            let entry = runs.entry(footprint.segment).or_default();
            entry.0 += footprint.blocks;
            entry.1 += footprint.bytes;
        }
        let core = self.store.core.lock();
        let records: Vec<SegmentRecord> = core.entries.values().map(|entry| entry.to_record()).collect();
        let mut owners: HashMap<Slot, SegmentId> = HashMap::new();
        for record in &records {
            for &slot in &record.slots {
                if let Some(other) = owners.insert(slot, record.id) {
                    report.problems.push(format!("segments {other} and {} share {slot:?}", record.id));
                }
            }
        }
        for group in core.groups.values() {
            for member in self.store.members.of_group(group.index) {
                report.slots += u64::from(member.slot_count());
                let mut check = |slot: Slot| {
                    if group.is_bad(slot) && !group.is_free(slot) {
                        return;
                    }
                    if group.is_free(slot) == owners.contains_key(&slot) {
                        report.problems.push(format!("{slot:?} is neither free nor used by one segment"));
                    }
                };
                // Of a device that is not here, the root alone tells the number of slots, which may be any.
                if member.label().is_some() {
                    let all = (0..member.slot_count()).map(SlotIndex::new);
                    all.for_each(|index| check(Slot { device: member.index, index }));
                } else {
                    owners.keys().filter(|slot| slot.device == member.index).for_each(|slot| check(*slot));
                }
            }
        }
        drop(core);
        let empty = Vec::new();
        for record in &records {
            let places = live.get(&record.id).unwrap_or(&empty);
            let counted = match record.kind {
                SegmentKind::Run => runs.get(&record.id).copied().unwrap_or_default(),
                _ => (places.len() as u32, places.iter().map(|place| u64::from(place.footprint())).sum()),
            };
            if counted != (record.live_blocks, record.live_bytes) {
                report.problems.push(format!(
                    "segment {} ({:?}) counts {} live blocks of {} bytes, {} of {} are referred to",
                    record.id, record.kind, record.live_blocks, record.live_bytes, counted.0, counted.1
                ));
            }
            check_overlaps(record, places, report);
            if record.state != SegmentState::Freed {
                self.check_stripes(record, report);
            }
        }
        for id in live.keys().filter(|id| !records.iter().any(|record| record.id == **id)) {
            report.problems.push(format!("blocks lie in segment {id}, which does not exist"));
        }
    }

    /// Whether the parity columns of a stripe are those of its data columns; true when a device is away.
    fn parity_matches(&self, record: &SegmentRecord, stripe: &StripeHeader) -> bool {
        let layout = record.layout;
        let start = stripe_header_len(stripe.sums.len()) as usize;
        let column = |column: usize| {
            let slot = record.slots[column];
            let member = self.store.members.get(slot.device);
            let pending =
                member.read(member.slot_offset(slot.index, stripe.offset), stripe.height as usize)?;
            member.wait(pending).ok()
        };
        let data: Option<Vec<_>> = (0..layout.k()).map(|i| column(layout.replica(i, 0))).collect();
        let stored: Option<Vec<_>> = (0..layout.m()).map(|p| column(layout.parity(p))).collect();
        let (Some(data), Some(stored)) = (data, stored) else { return true };
        let data: Vec<&[u8]> = data.iter().map(|bytes| &bytes[start..]).collect();
        let mut parity = vec![vec![0; stripe.height as usize - start]; layout.m()];
        let mut columns: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        larder_store::parity::encode(&data, &mut columns);
        stored.iter().zip(&parity).all(|(stored, computed)| stored[start..] == computed[..])
    }

    /// Descriptors and stripes on every online device of a segment, parity and padding included.
    fn check_stripes(&self, record: &SegmentRecord, report: &mut Report) {
        let mut end = None;
        for (column, slot) in record.slots.iter().enumerate() {
            let member = self.store.members.get(slot.device);
            let read = |offset: u32, len: usize| {
                let pending = member.read(member.slot_offset(slot.index, offset), len)?;
                member.wait(pending).ok()
            };
            if !member.is_online() {
                continue;
            }
            let mut problem = |text: String| {
                report.problems.push(format!("segment {} on {}: {text}", record.id, member.name()));
            };
            let Some(bytes) = read(0, DESCRIPTOR_LEN as usize) else {
                problem("cannot be read".into());
                continue;
            };
            match check_descriptor(&self.store.sums, &bytes) {
                Ok((found, at))
                    if found.id == record.id
                        && at == column
                        && found.slots[column] == record.slots[column] => {}
                Ok(_) => problem("the descriptor is another segment's".into()),
                Err(corrupt) => problem(corrupt.to_string()),
            }
            let mut offset = DESCRIPTOR_LEN;
            while offset < record.height {
                let stripe = read(offset, ALIGN).ok_or_else(|| "cannot be read".to_owned());
                let stripe = stripe.and_then(|head| {
                    StripeHeader::check(&self.store.sums, &head).map_err(|corrupt| corrupt.to_string())
                });
                let stripe = match stripe {
                    Ok(stripe)
                        if stripe.segment == record.id && stripe.offset == offset && stripe.height > 0 =>
                    {
                        stripe
                    }
                    Ok(_) => {
                        problem(format!("the row at {offset} is another one"));
                        break;
                    }
                    Err(text) => {
                        problem(format!("row at {offset}: {text}"));
                        break;
                    }
                };
                let body = read(offset, stripe.height as usize);
                let start = stripe_header_len(stripe.sums.len()) as usize;
                match body {
                    Some(body) if fast128(&self.store.sums, &body[start..]) == stripe.sums[column] => {}
                    Some(_) => problem(format!("the row at {offset} does not match its checksum")),
                    None => problem(format!("the row at {offset} cannot be read")),
                }
                offset += stripe.height;
                if column == 0 {
                    report.stripes += 1;
                    if record.layout.m() > 0 && !self.parity_matches(record, &stripe) {
                        problem(format!(
                            "the parity of the row at {} is not that of its data",
                            stripe.offset
                        ));
                    }
                }
            }
            if *end.get_or_insert(offset) != offset || offset != record.height {
                problem(format!("rows end at {offset}, the table says {}", record.height));
            }
        }
    }
}

fn check_overlaps(record: &SegmentRecord, places: &[Place], report: &mut Report) {
    let mut sorted = places.to_vec();
    sorted.sort_by_key(|place| (place.column, place.offset));
    for pair in sorted.windows(2) {
        if pair[0].column == pair[1].column && pair[0].offset + pair[0].footprint() > pair[1].offset {
            report.problems.push(format!("{:?} and {:?} overlap", pair[0], pair[1]));
        }
    }
    for place in sorted.iter().filter(|place| place.offset + place.footprint() > record.height) {
        report.problems.push(format!("{place:?} is above its segment's height {}", record.height));
    }
}
