//! Properties: what was set on the pool and on datasets, and what streams brought.

use crate::error::ensure;
use crate::{Corrupt, Reason, layout};

layout! {
    /// The fixed part of a [`PropertyRecord`]; name and value follow.
    pub struct PropertyHead[8] {
        /// Bytes of the name.
        name_len: u16 = 0,
        /// A [`PropertySource`].
        source: u8 = 2,
    }
}

/// Where a property that is set comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum PropertySource {
    /// Somebody set it here.
    Local = 1,
    /// A stream brought it; one that was set here comes first.
    Received = 2,
    /// Nothing is set here, and what a stream brought has no effect; without a value, under the key of what is set.
    Masked = 3,
}

impl PropertySource {
    fn of(number: u8) -> Option<Self> {
        [Self::Local, Self::Received, Self::Masked].into_iter().find(|one| *one as u8 == number)
    }
}

/// A property set on a dataset or on the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PropertyRecord {
    /// Its name.
    pub name: String,
    /// Its value, as people write it.
    pub value: String,
    /// Where it comes from.
    pub source: PropertySource,
}

impl PropertyRecord {
    /// A property that somebody set here.
    pub fn local(name: &str, value: &str) -> Self {
        Self { name: name.to_owned(), value: value.to_owned(), source: PropertySource::Local }
    }

    /// The record's bytes: head, name, value.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; PropertyHead::SIZE];
        PropertyHead { name_len: self.name.len() as u16, source: self.source as u8 }.put(&mut out);
        out.extend_from_slice(self.name.as_bytes());
        out.extend_from_slice(self.value.as_bytes());
        out
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        let bad = |reason| Corrupt::new("property record", reason);
        let head = PropertyHead::get(bytes).ok_or(bad(Reason::Short))?;
        let unknown = Corrupt::new("a source of properties", Reason::Feature);
        let source = PropertySource::of(head.source).ok_or(unknown)?;
        let rest = &bytes[PropertyHead::SIZE..];
        let (name, value) = rest.split_at_checked(head.name_len.into()).ok_or(bad(Reason::Short))?;
        let text = |bytes| std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| bad(Reason::Range));
        ensure(source != PropertySource::Masked || value.is_empty(), "property record", Reason::Range)?;
        Ok(Self { name: text(name)?, value: text(value)?, source })
    }
}
