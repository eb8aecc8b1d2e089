//! Commands that show something again and again: `[POOL...] [INTERVAL [COUNT]]`, and when heads are due.

use crate::api::{ApiError, Result};
use crate::client;
use std::io::IsTerminal;
use std::time::Duration;

/// The positional words, parsed.
#[derive(Debug, PartialEq)]
pub struct Plan {
    /// Pools; empty for all.
    pub names: Vec<String>,
    /// The pause between two samples.
    pub interval: Option<Duration>,
    /// Number of samples; without it and with an interval, until the command is ended.
    pub count: Option<u64>,
}

impl Plan {
    /// Pool names never start with a digit, so the numbers at the end are interval and count.
    ///
    /// # Errors
    /// Usage.
    pub fn of(words: &[String]) -> Result<Self> {
        let first = words.iter().position(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        let (names, numbers) = words.split_at(first.unwrap_or(words.len()));
        let refuse = |why: &str| ApiError::usage(format!("cannot read '{}': {why}", numbers.join(" ")));
        let interval = |text: &String| match text.parse::<f64>() {
            Ok(seconds) if (0.001..1e9).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
            _ => Err(refuse("an interval is a number of seconds")),
        };
        let count = |text: &String| match text.parse::<u64>() {
            Ok(count) if count > 0 => Ok(count),
            _ => Err(refuse("a count is a whole number above 0")),
        };
        let (interval, count) = match numbers {
            [] => (None, None),
            [first] => (Some(interval(first)?), None),
            [first, second] => (Some(interval(first)?), Some(count(second)?)),
            _ => return Err(refuse("at most an interval and a count come last")),
        };
        Ok(Self { names: names.to_vec(), interval, count })
    }

    /// Takes a sample now and after each interval, until COUNT of them have been shown.
    ///
    /// # Errors
    /// Those of `sample`.
    pub fn run(&self, mut sample: impl FnMut() -> Result<Sample>) -> Result<()> {
        let mut shown = 0;
        loop {
            match sample()? {
                Sample::Shown => shown += 1,
                Sample::Skipped => {}
                Sample::Nothing => return Ok(()),
            }
            let Some(interval) = self.interval else { return Ok(()) };
            if self.count.is_some_and(|count| shown >= count) {
                return Ok(());
            }
            client::pause(interval);
        }
    }
}

/// Outcome of one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sample {
    /// It was printed.
    Shown,
    /// It is only what the next one is compared with.
    Skipped,
    /// There is nothing to show, now or later.
    Nothing,
}

/// When heads are due: at first, and on a terminal again when the last ones are about to scroll away.
#[derive(Debug)]
pub struct Heads {
    /// Lines after which they are due again.
    every: Option<usize>,
    since: Option<usize>,
}

impl Heads {
    /// Only at first with `once`, and where standard output is no terminal: scripts read that.
    pub fn new(once: bool) -> Self {
        let out = std::io::stdout();
        let rows = match !once && out.is_terminal() {
            true => rustix::termios::tcgetwinsize(out).map_or(24, |size| usize::from(size.ws_row)),
            false => 0,
        };
        Self { every: rows.checked_sub(5).filter(|&rows| rows > 0), since: None }
    }

    /// Whether heads come before the next `lines` lines.
    pub fn due(&mut self, lines: usize) -> bool {
        let due = match (self.since, self.every) {
            (None, _) => true,
            (Some(since), Some(every)) => since + lines > every,
            (Some(_), None) => false,
        };
        self.since = Some(if due { lines } else { self.since.unwrap_or(0) + lines });
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Plan> {
        Plan::of(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn numbers_at_the_end_are_interval_and_count() {
        let plan = read("tank dozer 0.5 10").unwrap();
        assert_eq!(plan.names, ["tank", "dozer"]);
        assert_eq!((plan.interval, plan.count), (Some(Duration::from_millis(500)), Some(10)));
        let plan = read("5").unwrap();
        assert_eq!((plan.names.len(), plan.interval, plan.count), (0, Some(Duration::from_secs(5)), None));
        for bad in ["tank 0", "tank 1 0", "tank 1 2 3", "1 tank", "tank 1 1.5"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn heads_come_again_before_they_scroll_away() {
        let mut heads = Heads { every: Some(10), since: None };
        assert_eq!([4, 4, 4, 4, 20].map(|lines| heads.due(lines)), [true, false, true, false, true]);
        let mut heads = Heads { every: None, since: None };
        assert_eq!([4, 400].map(|lines| heads.due(lines)), [true, false]);
    }
}
