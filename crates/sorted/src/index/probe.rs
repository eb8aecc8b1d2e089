//! Look-ups of a batch: the filters of all first, then the pages of all.

use super::filter::{Filter, Spots};
use super::memtable::Memtable;
use super::part::{IndexRun, Part};
use super::{Counters, Runs};
use crate::pages::PageReader;
use larder_format::index::PrintEntry;
use larder_format::run::RunId;
use larder_format::{BlockId, BlockPtr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A look-up under way; see [`super::Index::probe`].
#[derive(Debug)]
pub struct Probe {
    pub(super) asks: Vec<Ask>,
    pub(super) frozen: Option<Arc<Memtable>>,
    pub(super) runs: Arc<Runs>,
    /// The first run of which [`Ask::recent`] says anything.
    pub(super) recent_from: Option<RunId>,
    pub(super) counters: Arc<Counters>,
}

/// A fingerprint that is looked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub(super) high: u64,
    check: u32,
    /// It may be in a memtable, or in one of the runs that [`super::recent`] knows.
    pub(super) recent: bool,
    /// A block that is gone, which no older run can mean.
    gone: Option<BlockId>,
    answer: Option<BlockId>,
    pub(super) answered: bool,
}

impl Ask {
    /// `kept`: whether the index has such fingerprints at all.
    pub(super) fn new(high: u64, check: u32, kept: bool) -> Self {
        Self { high, check, recent: false, gone: None, answer: None, answered: !kept }
    }

    /// Takes what the next older run says.
    pub(super) fn hear(&mut self, entry: Option<PrintEntry>) {
        match entry.filter(|entry| entry.check == self.check) {
            None => {}
            Some(entry) if entry.gone => self.gone = Some(entry.id),
            Some(entry) if self.gone == Some(entry.id) => {}
            Some(entry) => (self.answer, self.answered) = (Some(entry.id), true),
        }
    }
}

/// A query to a filter.
struct Question<'a> {
    ask: usize,
    /// Of the run, from the newest.
    age: usize,
    run: &'a IndexRun,
    part: usize,
    filter: &'a Filter,
    spots: Spots,
}

/// A page that may hold what is asked for.
struct Candidate<'a> {
    ask: usize,
    /// Of the run, from the newest.
    age: usize,
    part: &'a Part,
    page: usize,
}

impl Candidate<'_> {
    fn ptr(&self) -> BlockPtr {
        self.part.index[self.page].ptr
    }
}

impl Probe {
    /// The candidates, one for each fingerprint: blocks that may have it, which the block map has to confirm.
    /// `tokens` are pages that may be read; a fingerprint whose page may not be read has no candidate. Nor has one
    /// whose page cannot be read.
    pub fn finish<R: PageReader>(mut self, reader: &R, tokens: &mut u64) -> Vec<Option<BlockId>> {
        let mut asks = std::mem::take(&mut self.asks);
        if let Some(memtable) = &self.frozen {
            let asked = asks.iter_mut().filter(|ask| ask.recent && !ask.answered);
            asked.for_each(|ask| ask.hear(memtable.get(ask.high)));
        }
        let mut candidates = self.candidates(&asks);
        while !candidates.is_empty() {
            candidates = self.read(&mut asks, candidates, reader, tokens);
        }
        asks.into_iter().map(|ask| ask.answer).collect()
    }

    /// Candidates that passed the filters, in order of ask and age.
    fn candidates<'a>(&'a self, asks: &[Ask]) -> Vec<Candidate<'a>> {
        let open: Vec<usize> = (0..asks.len()).filter(|&at| !asks[at].answered).collect();
        // Few; most runs are asked for these alone.
        let recent: Vec<usize> = open.iter().copied().filter(|&at| asks[at].recent).collect();
        let mut questions = Vec::with_capacity(2 * open.len());
        for (age, run) in self.runs.newest_first().enumerate() {
            let is_above_base = age < self.runs.uppers.len();
            let is_recent = is_above_base && self.recent_from.is_some_and(|from| from <= run.oldest);
            // Where a run was folded, its entries are older than those of the base.
            let folded_to = if is_above_base { self.runs.base.taken_to(run.newest) } else { None };
            for &ask in if is_recent { &recent } else { &open } {
                let high = asks[ask].high;
                if folded_to.is_none_or(|to| high > to)
                    && let Some((part, filter)) = run.part_of(high)
                {
                    questions.push(Question { ask, age, run, part, filter, spots: filter.spots(high) });
                }
            }
        }
        // In a loop of its own, and for all runs: the more of them are under way at once.
        questions.iter().for_each(|question| question.filter.fetch(&question.spots));
        let held = questions.into_iter().filter(|question| question.filter.may_hold(&question.spots));
        let candidate = |Question { ask, age, run, part, .. }: Question<'a>| {
            let part: &Part = &run.parts()[part];
            Candidate { ask, age, part, page: part.page_of(asks[ask].high) }
        };
        let mut candidates: Vec<_> = held.map(candidate).collect();
        candidates.sort_unstable_by_key(|candidate| (candidate.ask, candidate.age));
        candidates
    }

    /// Asks the newest candidate of each; gives those that remain.
    fn read<'a, R: PageReader>(
        &self,
        asks: &mut [Ask],
        candidates: Vec<Candidate<'a>>,
        reader: &R,
        tokens: &mut u64,
    ) -> Vec<Candidate<'a>> {
        let (mut now, mut later): (Vec<Candidate<'a>>, Vec<_>) = (Vec::new(), Vec::new());
        for candidate in candidates {
            let first = now.last().is_none_or(|last| last.ask != candidate.ask);
            if first { now.push(candidate) } else { later.push(candidate) }
        }
        now.sort_unstable_by_key(|candidate| candidate.ptr().place);
        let mut ptrs: Vec<BlockPtr> = now.iter().map(Candidate::ptr).collect();
        ptrs.dedup();
        ptrs.truncate((*tokens).min(ptrs.len() as u64) as usize);
        *tokens -= ptrs.len() as u64;
        let pages = reader.read_pages(&ptrs);
        let mut damaged = 0;
        let mut pages = ptrs.into_iter().zip(pages).peekable();
        for candidate in now {
            let ask = &mut asks[candidate.ask];
            while pages.next_if(|(ptr, _)| *ptr != candidate.ptr()).is_some() {}
            let Some((_, page)) = pages.peek() else {
                self.counters.refused.fetch_add(1, Ordering::Relaxed);
                ask.answered = true;
                continue;
            };
            let found = page.as_ref().ok().and_then(|bytes| {
                candidate.part.open_page(candidate.page, bytes).and_then(|page| page.find(ask.high)).ok()
            });
            damaged += u64::from(found.is_none());
            ask.hear(found.flatten());
        }
        self.counters.damaged.fetch_add(damaged, Ordering::Relaxed);
        later.retain(|candidate| !asks[candidate.ask].answered);
        later
    }
}
