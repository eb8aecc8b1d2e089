//! Looking for records that are there already, and storing those that are not.

use crate::duplicates::count;
use crate::op::Op;
use crate::pool::Pool;
use larder_format::{BlockId, BlockPtr, Fingerprint};
use larder_mutants::{Mutant, mutated};
use larder_sorted::map::BlockMap;
use larder_store::{Dedup, Draft, NewRecord, Result, RunIo};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// When of so many records all but one are new, the next are expected to be, too.
const MOSTLY: usize = 8;

/// Records on their way to being found or stored.
struct Search<'r> {
    records: &'r [NewRecord],
    prints: Vec<Option<Fingerprint>>,
    /// Of those that were expected to be new.
    drafts: Vec<Option<Draft>>,
    /// The earlier record of the batch with the same content.
    same_as: Vec<Option<usize>>,
    found: Vec<Option<BlockPtr>>,
}

impl Search<'_> {
    /// Those to look for that were not found yet.
    fn open(&self) -> impl Iterator<Item = usize> {
        let open =
            |&i: &usize| self.found[i].is_none() && self.same_as[i].is_none() && self.prints[i].is_some();
        (0..self.records.len()).filter(open)
    }

    fn print(&self, i: usize) -> Fingerprint {
        self.prints[i].expect("records without a fingerprint are not looked for")
    }
}

impl Pool {
    /// Encodes records, gives them places and submits them; where [`NewRecord::dedup`] says so, only what is not
    /// there already. The pointers come in the order of the records. They are readable at once and durable with the
    /// next commit; the extents that name them must be put into a tree under the same `op`.
    ///
    /// # Errors
    /// [`crate::PoolError::NoSpace`] when the records do not fit: then some may have been written, but none is
    /// referred to.
    pub fn store_records(&self, op: &Op<'_>, records: Vec<NewRecord>) -> Result<Vec<BlockPtr>> {
        if records.iter().any(|record| record.dedup != Dedup::Off) {
            return self.store_unless_there(op, records);
        }
        let prints = vec![None; records.len()];
        let drafts = records.iter().map(|_| None).collect();
        self.shared.store.store_new(records, drafts, &prints, op.watermark())
    }

    /// As [`larder_store::Store::store_new`]; what has a fingerprint is in the locality cache from now on.
    fn store_with_locality(
        &self,
        op: &Op<'_>,
        records: Vec<NewRecord>,
        drafts: Vec<Option<Draft>>,
        mut prints: Vec<Option<Fingerprint>>,
    ) -> Result<Vec<BlockPtr>> {
        if mutated(Mutant::WrongPrint) {
            let wrong = prints.iter().flatten().next().copied();
            prints.iter_mut().flatten().for_each(|print| *print = wrong.unwrap_or(*print));
        }
        let copies: Vec<usize> = records.iter().map(|record| record.copies.into()).collect();
        let born = self.shared.store.store_new(records, drafts, &prints, op.watermark())?;
        if !mutated(Mutant::MapNotTold) {
            let mut locality = self.shared.duplicates.locality.lock();
            for ((&ptr, print), copies) in born.iter().zip(&prints).zip(copies) {
                print.iter().for_each(|print| locality.insert(*print, ptr, copies));
            }
        }
        Ok(born)
    }

    /// Stores what of the records is not there yet. The pointers come in the order of the records; what they name
    /// is marked as shared where somebody else may name it.
    ///
    /// # Errors
    /// As [`Pool::store_records`].
    fn store_unless_there(&self, op: &Op<'_>, records: Vec<NewRecord>) -> Result<Vec<BlockPtr>> {
        let mut search = self.fingerprint_all(&records);
        self.find_all(&mut search);
        let new: Vec<usize> = (0..records.len())
            .filter(|&i| search.found[i].is_none() && search.same_as[i].is_none())
            .collect();
        self.shared
            .duplicates
            .expects_new
            .store(MOSTLY * new.len() >= (MOSTLY - 1) * records.len(), Ordering::Relaxed);
        let Search { prints, same_as, mut found, mut drafts, .. } = search;
        // Held until the index has them.
        let storing = self.shared.duplicates.storing(&self.shared.store);
        let mut stored = Vec::new();
        let mut records: Vec<Option<NewRecord>> = records.into_iter().map(Some).collect();
        let fresh = new.iter().map(|&i| records[i].take().expect("each index comes once")).collect();
        let fresh_prints = new.iter().map(|&i| prints[i]).collect::<Vec<_>>();
        let fresh_drafts = new.iter().map(|&i| drafts[i].take()).collect();
        drop(drafts);
        for (&i, ptr) in new.iter().zip(self.store_with_locality(op, fresh, fresh_drafts, fresh_prints)?) {
            found[i] = Some(ptr);
            stored.extend(prints[i].map(|print| (print, ptr.id)));
        }
        if let Some(index) = &mut self.shared.duplicates.indexed.lock().index {
            stored.into_iter().for_each(|(print, id)| index.insert(print, id));
        }
        drop(storing);
        for (i, earlier) in same_as.iter().enumerate().filter_map(|(i, earlier)| Some((i, (*earlier)?))) {
            found[i] = found[earlier];
            if let Some(ptr) = found[i] {
                self.hit(&mut self.shared.store.map.lock(), ptr);
            }
        }
        for (ptr, record) in found.iter().zip(records) {
            // The copy that was just written goes, not the one that is kept: its memory is in the processor's caches.
            if let (Some(ptr), Some(record)) = (ptr, record)
                && self.shared.store.cache.lacks_record(ptr.id)
            {
                self.shared.store.cache.keep_record(ptr.id, record.plain);
            }
        }
        Ok(found
            .into_iter()
            .map(|ptr| ptr.expect("each record was found, stored, or is the same as an earlier one"))
            .collect())
    }

    /// The fingerprints of records with `dedup` on, and which of them are the same; their drafts as well, if they are
    /// likely to be new.
    fn fingerprint_all<'r>(&self, records: &'r [NewRecord]) -> Search<'r> {
        let wanted: Vec<usize> = (0..records.len()).filter(|&i| records[i].dedup != Dedup::Off).collect();
        // A record that was just hashed is in the processor's cache.
        let drafts_too = self.shared.duplicates.expects_new.load(Ordering::Relaxed);
        let hashed = self.shared.store.world.workers.map(wanted.len(), |n| {
            let record = &records[wanted[n]];
            let print = self.fingerprint(&record.plain);
            // To have compressed one in vain must be cheap.
            let wants_draft = drafts_too && !record.codec.is_slow();
            (print, wants_draft.then(|| self.shared.store.draft_record(record)))
        });
        let mut prints = vec![None; records.len()];
        let mut drafts: Vec<Option<Draft>> = records.iter().map(|_| None).collect();
        let mut same_as = vec![None; records.len()];
        let mut first: HashMap<Fingerprint, usize> = HashMap::new();
        for (&i, (print, draft)) in wanted.iter().zip(hashed) {
            (prints[i], drafts[i]) = (Some(print), draft);
            let earlier = *first.entry(print).or_insert(i);
            let same = |other: usize| {
                records[i].copies <= records[other].copies
                    && (records[i].dedup != Dedup::Verify || records[i].plain == records[other].plain)
            };
            same_as[i] = (earlier != i && same(earlier)).then_some(earlier);
        }
        count(&self.shared.duplicates.counts.looked_up, wanted.len());
        Search { records, prints, drafts, same_as, found: vec![None; records.len()] }
    }

    /// Finds what is there: first in the locality cache, then around what the index names. While neighbourhoods answer
    /// for the rest of the batch the index is asked for one record at a time, else for more and more.
    fn find_all(&self, search: &mut Search<'_>) {
        let io = RunIo::new(&self.shared.store);
        self.find_in_locality(&mut self.shared.store.map.lock(), search);
        let mut width = 1;
        let mut next = 0;
        loop {
            let asked: Vec<usize> = search.open().filter(|&i| i >= next).take(width).collect();
            let Some(&last) = asked.last() else { break };
            next = last + 1;
            let prints: Vec<_> = asked.iter().map(|&i| search.print(i)).collect();
            let probe = match &self.shared.duplicates.indexed.lock().index {
                Some(index) => index.probe(&prints),
                None => break,
            };
            let began = self.shared.store.world.clock.monotonic();
            let allowed = self.shared.duplicates.tokens.pages(began);
            let mut left = allowed;
            let named = probe.finish(&io, &mut left);
            let mut pages = allowed - left.min(allowed);
            let before = search.open().filter(|&i| i >= next).count();
            for (i, id) in asked.into_iter().zip(named).filter_map(|(i, id)| Some((i, id?))) {
                // A neighbourhood read for another may have had it.
                if search.found[i].is_none() {
                    pages += self.look_around(&io, search, i, id) as u64;
                }
            }
            self.shared
                .duplicates
                .tokens
                .spent(pages, self.shared.store.world.clock.monotonic().saturating_sub(began));
            let after = search.open().filter(|&i| i >= next).count();
            width = if after < before { 1 } else { width * 2 };
        }
        self.verify_found(search);
    }

    /// The index says that block `id` has the content of record `i`. Reads the map around it, which may find others
    /// of the batch as well; the pages that it took.
    fn look_around(&self, io: &RunIo<'_>, search: &mut Search<'_>, i: usize, id: BlockId) -> usize {
        let around = self.shared.store.map.lock().around(id);
        // A page of the map that cannot be read is told by whoever needs it.
        let Ok(read) = around.read(io) else { return 1 };
        let print = search.print(i);
        let is_it = {
            let mut map = self.shared.store.map.lock();
            let mut locality = self.shared.duplicates.locality.lock();
            let mut is_it = false;
            for (neighbour, entry) in map.neighbours(&read) {
                if let (Some(print_of), Some(&place)) = (entry.print, entry.places().first()) {
                    locality.insert(print_of, BlockPtr { id: neighbour, place }, entry.places().len());
                    is_it |= neighbour == id && print_of == print;
                }
            }
            drop(locality);
            self.find_in_locality(&mut map, search);
            is_it
        };
        if !is_it {
            count(&self.shared.duplicates.counts.stale, 1);
            if let Some(index) = &mut self.shared.duplicates.indexed.lock().index {
                index.remove(print, id);
            }
        }
        read.pages
    }

    /// Takes what the locality cache knows; it is shared from then on.
    fn find_in_locality(&self, map: &mut BlockMap, search: &mut Search<'_>) {
        let open: Vec<usize> = search.open().collect();
        let mut hits = 0;
        for i in open {
            let copies = if mutated(Mutant::FewCopiesShared) { 1 } else { search.records[i].copies };
            let ptr = self.shared.duplicates.locality.lock().get(search.print(i), copies);
            if let Some(ptr) = ptr {
                search.found[i] = Some(ptr);
                self.hit(map, ptr);
                hits += 1;
            }
        }
        count(&self.shared.duplicates.counts.locality_hits, hits);
    }

    /// A block gets another reference.
    fn hit(&self, map: &mut BlockMap, ptr: BlockPtr) {
        if !mutated(Mutant::HitNotMarked) {
            self.shared.freeing.mark_shared(map, ptr.id);
        }
        let bytes = ptr.place.stored;
        count(&self.shared.duplicates.counts.hits, 1);
        count(&self.shared.duplicates.counts.saved_bytes, bytes as usize);
        self.shared.duplicates.tokens.earned(bytes.into());
    }

    /// Compares the bytes of what was found where that is asked for; what differs, or cannot be read, was not found.
    /// Nor was what is known to be lost: whoever writes it again has it. Nor what has fewer places than are asked for;
    /// it keeps those that it has, as it has the mark `SHARED` by now.
    fn verify_found(&self, search: &mut Search<'_>) {
        let has_few = |ptr: BlockPtr, copies: u8| {
            copies > 1
                && !mutated(Mutant::FewCopiesShared)
                && self.shared.store.places_of(ptr.id).map_or(true, |places| places.len() < copies.into())
        };
        for (found, record) in search.found.iter_mut().zip(search.records) {
            let has_few = found.filter(|&ptr| has_few(ptr, record.copies));
            let lost = found.filter(|ptr| self.shared.damage.is_block_lost(ptr.id));
            if let Some(ptr) = has_few.or(lost) {
                // Others are to be known instead of it: of one that had more places when it was met, too.
                self.shared.duplicates.forget(ptr.id);
                *found = None;
                count(&self.shared.duplicates.counts.refuted, 1);
                self.shared.duplicates.counts.hits.fetch_sub(1, Ordering::Relaxed);
            }
        }
        // The ledger may know a lost block by an alias of it.
        let is_damaged = self.shared.damage.has_any();
        let doubted: Vec<(usize, BlockPtr)> = (0..search.records.len())
            .filter(|&i| search.records[i].dedup == Dedup::Verify || is_damaged)
            .filter_map(|i| Some((i, search.found[i]?)))
            .collect();
        let wanted: Vec<_> = doubted.iter().map(|&(_, ptr)| ptr).collect();
        let there = self.shared.store.read_from_groups(&wanted);
        for (i, ptr) in doubted {
            if there.get(&ptr.id).is_none_or(|plain| *plain != search.records[i].plain) {
                self.shared.duplicates.forget(ptr.id);
                search.found[i] = None;
                count(&self.shared.duplicates.counts.refuted, 1);
                self.shared.duplicates.counts.hits.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}
