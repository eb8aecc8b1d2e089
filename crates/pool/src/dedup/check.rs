//! The index held against the map.

use super::upkeep::SINCE;
use crate::check::Report;
use crate::duplicates::Indexed;
use crate::pool::Pool;
use larder_format::{BlockId, Fingerprint};
use larder_store::error::Result;
use larder_store::run_io::RunIo;
use std::ops::ControlFlow;

/// Fingerprints that are looked up at once.
const AT_ONCE: usize = 1024;

impl Pool {
    /// Whether any block may have a fingerprint in the map.
    pub(crate) fn may_have_prints(&self) -> bool {
        self.note(SINCE).is_some()
    }

    /// Counts the blocks that the index should lead to and does not. Nobody may be inside.
    pub(crate) fn check_index(&self, report: &mut Report) -> Result<()> {
        let (mut next, io) = (Some(BlockId::new(0)), RunIo::new(&self.store));
        while let Some(from) = next {
            let mut prints: Vec<(Fingerprint, BlockId)> = Vec::new();
            let window = self.store.map.lock().window(from, AT_ONCE);
            next = window.visit(&io, |id, entry| {
                prints.extend(entry.print.map(|print| (print, id)));
                Ok(if prints.len() < AT_ONCE { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
            })?;
            let probe = match &*self.duplicates.indexed.lock() {
                Indexed { index: Some(index), refill: None, .. } => {
                    prints.retain(|(print, _)| print.low() & (index.sampling() - 1) == 0);
                    index.probe(&prints.iter().map(|(print, _)| *print).collect::<Vec<_>>())
                }
                _ => return Ok(()),
            };
            for ((print, id), named) in prints.into_iter().zip(probe.finish(&io, &mut { u64::MAX })) {
                match named {
                    None => report.unindexed += 1,
                    Some(named) if named != id => {
                        let look_up = self.store.map.lock().look_up(named);
                        let same = look_up.entry(&io)?.is_some_and(|entry| entry.print == Some(print));
                        report.stale += u64::from(!same);
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }
}
