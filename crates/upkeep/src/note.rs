//! Notes that keep numbers.

use larder_format::Timestamp;

/// Takes the words of a note apart that keeps numbers with spaces between; `None` where there is none.
pub(crate) struct NoteReader<'t>(std::str::Split<'t, char>);

impl<'t> NoteReader<'t> {
    /// Of a note.
    pub(crate) fn new(text: &'t str) -> Self {
        Self(text.split(' '))
    }

    /// The next word.
    pub(crate) fn word(&mut self) -> Option<&'t str> {
        self.0.next()
    }

    /// The next number.
    pub(crate) fn number(&mut self) -> Option<u64> {
        self.word()?.parse().ok()
    }

    /// Seconds and nanoseconds.
    pub(crate) fn time(&mut self) -> Option<Timestamp> {
        let secs = i64::try_from(self.number()?).ok()?;
        Some(Timestamp { secs, nanos: u32::try_from(self.number()?).ok()? })
    }
}
