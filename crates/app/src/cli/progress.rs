//! A line on the terminal about bytes that move: how many of how many, how fast, and how long it takes.

use crate::render::scan::duration;
use larder_pool::property::format_size;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Time between two lines.
const TELL: Duration = Duration::from_secs(1);

/// Bytes that move.
pub struct Progress {
    what: &'static str,
    total: u64,
    moved: u64,
    began: Instant,
    told: Instant,
    is_shown: bool,
}

impl Progress {
    /// Of about `total` bytes.
    pub fn of(total: u64) -> Self {
        Self::named("", total)
    }

    /// The same, of a part of the work that has a name.
    pub fn named(what: &'static str, total: u64) -> Self {
        let now = now();
        Self { what, total, moved: 0, began: now, told: now, is_shown: false }
    }

    /// So many more are to move.
    pub fn expect(&mut self, bytes: u64) {
        self.total += bytes;
    }

    /// Whether somebody would see it.
    pub fn is_watched() -> bool {
        std::io::stderr().is_terminal()
    }

    /// So many more have moved; whether it is time to tell, and then seconds since the beginning, and bytes.
    pub fn add(&mut self, bytes: u64) -> Option<(u64, u64)> {
        self.moved += bytes;
        let now = now();
        if now.duration_since(self.told) < TELL {
            return None;
        }
        self.told = now;
        Some((self.began.elapsed().as_secs(), self.moved))
    }

    /// Bytes that have moved.
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// Shows the line.
    pub fn show(&mut self) {
        let seconds = self.began.elapsed().as_secs_f64().max(0.001);
        let rate = self.moved as f64 / seconds;
        let left = self.total.saturating_sub(self.moved) as f64 / rate.max(1.0);
        eprint!(
            "\r{}{} of {}, {}/s, {} left   ",
            self.what,
            format_size(self.moved),
            format_size(self.total),
            format_size(rate as u64),
            duration(left as i64),
        );
        self.is_shown = true;
    }

    /// Ends the line.
    pub fn end(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            eprintln!();
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a command's own progress, of which no engine knows")]
fn now() -> Instant {
    Instant::now()
}
