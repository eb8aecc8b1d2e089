//! The index held against the map.

use super::upkeep::SINCE;
use crate::duplicates::Indexed;
use crate::pool::Pool;
use larder_format::{BlockId, Fingerprint};
use larder_store::{Result, RunIo};
use std::ops::ControlFlow;

/// Fingerprints that are looked up at once.
const AT_ONCE: usize = 1024;

impl Pool {
    /// Whether any block may have a fingerprint in the map.
    pub fn may_have_prints(&self) -> bool {
        self.note(SINCE).is_some()
    }

    /// Counts the blocks that the index should lead to and does not, and the fingerprints that it leads elsewhere than
    /// to a block with that content, up to where it sleeps or catches up. Nobody may be inside.
    ///
    /// # Errors
    /// When the block map or the index cannot be read.
    pub fn check_index(&self) -> Result<(u64, u64)> {
        let (mut unindexed, mut stale) = (0, 0);
        let (mut next, io) = (Some(BlockId::new(0)), RunIo::new(&self.shared.store));
        while let Some(from) = next {
            let mut prints: Vec<(Fingerprint, BlockId)> = Vec::new();
            let window = self.shared.store.map.lock().window(from, AT_ONCE);
            next = window.visit(&io, |id, entry| {
                prints.extend(entry.print.map(|print| (print, id)));
                Ok(if prints.len() < AT_ONCE { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
            })?;
            let probe = match &*self.shared.duplicates.indexed.lock() {
                Indexed { index: Some(index), refill: None, .. } => {
                    prints.retain(|(print, _)| print.low() & (index.sampling() - 1) == 0);
                    index.probe(&prints.iter().map(|(print, _)| *print).collect::<Vec<_>>())
                }
                _ => return Ok((unindexed, stale)),
            };
            for ((print, id), named) in prints.into_iter().zip(probe.finish(&io, &mut { u64::MAX })) {
                match named {
                    None => unindexed += 1,
                    Some(named) if named != id => {
                        let look_up = self.shared.store.map.lock().look_up(named);
                        let same = look_up.entry(&io)?.is_some_and(|entry| entry.print == Some(print));
                        stale += u64::from(!same);
                    }
                    Some(_) => {}
                }
            }
        }
        Ok((unindexed, stale))
    }
}
