//! Budget of reads in search of duplicates.
//!
//! Reading may take an eighth of the time, and as long as writing what it found would have taken. The time for a page
//! is measured. Without a token a record is stored as new.

use larder_sync::Mutex;
use std::time::Duration;

/// Of so much time, one part goes to reading.
const PART: u32 = 8;
/// Most that can be saved up.
const MOST: Duration = Duration::from_secs(1);
/// Time to write a byte at the speed of one hard disk, ns.
const NANOS_A_BYTE: u64 = 8;
/// Pages that are read at once, at most.
const PAGES_AT_ONCE: u64 = 256;

#[derive(Debug)]
struct TokenState {
    at: Duration,
    saved_up: Duration,
    /// Time to read a page, as measured.
    page: Duration,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Tokens(Mutex<TokenState>);

impl Default for Tokens {
    fn default() -> Self {
        Self(Mutex::new(TokenState { at: Duration::ZERO, saved_up: MOST, page: Duration::from_micros(50) }))
    }
}

impl Tokens {
    /// Pages that may be read now.
    pub(crate) fn pages(&self, now: Duration) -> u64 {
        let state = &mut *self.0.lock();
        let passed = now.saturating_sub(state.at);
        state.at = state.at.max(now);
        state.saved_up = (state.saved_up + passed / PART).min(MOST);
        let page = state.page.as_nanos().max(1);
        (state.saved_up.as_nanos() / page).min(PAGES_AT_ONCE.into()) as u64
    }

    /// So many pages were read, and it took so long.
    pub(crate) fn spent(&self, pages: u64, took: Duration) {
        if pages == 0 {
            return;
        }
        let state = &mut *self.0.lock();
        state.saved_up = state.saved_up.saturating_sub(took);
        let each = took / u32::try_from(pages).unwrap_or(u32::MAX);
        state.page = (state.page * 7 + each) / 8;
    }

    /// So many bytes need not be written.
    pub(crate) fn earned(&self, bytes: u64) {
        let state = &mut *self.0.lock();
        let saved = Duration::from_nanos(bytes.saturating_mul(NANOS_A_BYTE));
        state.saved_up = (state.saved_up + saved).min(MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_reads_get_an_eighth_of_the_time_unless_they_find_something() {
        let tokens = Tokens::default();
        let (seek, second) = (Duration::from_millis(10), Duration::from_secs(1));
        let mut now = Duration::ZERO;
        let mut read_for = |seconds: u32, found: bool| {
            let (end, mut reading) = (now + second * seconds, Duration::ZERO);
            while now < end {
                now += Duration::from_millis(1);
                let pages = tokens.pages(now).min(1);
                tokens.spent(pages, seek * pages as u32);
                now += seek * pages as u32;
                reading += seek * pages as u32;
                if found {
                    tokens.earned(pages * (2 << 20));
                }
            }
            reading
        };
        read_for(10, false);
        let idle = read_for(10, false);
        assert!((second..second * 3 / 2).contains(&idle), "{idle:?} of ten seconds");
        let busy = read_for(10, true);
        assert!(busy > second * 8, "{busy:?} of ten seconds");
    }
}
