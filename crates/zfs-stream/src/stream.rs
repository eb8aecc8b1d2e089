//! Streams: from a reader to records, with their checksums proven.
//!
//! `zfs send` of one snapshot is one stream: `BEGIN`, records, `END`. With -R, -I or -p it is a package: `BEGIN` with a
//! list of what follows and `END`, then streams, then another `END`. All of a stream is summed up; `END` has the sum,
//! and since OpenZFS 0.6.5 each record has that of all before it.

use crate::bytes::Order;
use crate::checksum::Fletcher4;
use crate::codec::decompress;
use crate::error::{Refusal, Result, StreamError, corrupt};
use crate::list::{self, List};
use crate::record::{self, Begin, Head, LEN, Object, Parsed, SUMMED, order_of, own_sum};
use std::io::{ErrorKind, Read};

/// A record of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record<'a> {
    /// An object begins, or is changed; all that follows up to the next one is of it.
    Object(Object, &'a [u8]),
    /// No object has any of these numbers.
    FreeObjects {
        /// The first.
        first: u64,
        /// So many of them.
        count: u64,
    },
    /// Content of an object.
    Write {
        /// The object.
        object: u64,
        /// Where, bytes.
        offset: u64,
        /// The content, decompressed.
        data: &'a [u8],
    },
    /// A hole in an object.
    Free {
        /// The object.
        object: u64,
        /// Where, bytes.
        offset: u64,
        /// So many bytes; `u64::MAX` for all.
        len: u64,
    },
    /// Attributes of an object that found no room in its bonus.
    Spill {
        /// The object.
        object: u64,
        /// They.
        data: &'a [u8],
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before the first record.
    Start,
    /// Between streams.
    Between,
    /// In one.
    Within,
    /// Behind all of them.
    End,
}

/// Reads what `zfs send` wrote.
///
/// Memory: two blocks of at most 16 MiB, and the list of a package, of at most 64 MiB.
pub struct Streams<R> {
    input: R,
    /// Bytes read.
    at: u64,
    order: Order,
    sum: Fletcher4,
    place: Place,
    is_package: bool,
    package: Option<List>,
    payload: Vec<u8>,
    plain: Vec<u8>,
}

impl<R: Read> Streams<R> {
    /// Over what gives the bytes; each read is of some bytes or a block, so buffering it pays off.
    pub fn new(input: R) -> Self {
        Self {
            input,
            at: 0,
            order: Order::Little,
            sum: Fletcher4::default(),
            place: Place::Start,
            is_package: false,
            package: None,
            payload: Vec::new(),
            plain: Vec::new(),
        }
    }

    /// Bytes read so far.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// The byte order of who wrote it.
    pub fn order(&self) -> Order {
        self.order
    }

    /// The list of a package, once its first stream was asked for: `fss` has the datasets, by guid.
    pub fn package(&self) -> Option<&List> {
        self.package.as_ref()
    }

    /// The next stream's beginning; none behind the last. The rest of the one before is read and proven.
    ///
    /// # Errors
    /// [`StreamError`]. A [`Refusal`] is none: see [`Begin::check`]. After an error nothing more is to be read.
    pub fn next_stream(&mut self) -> Result<Option<Begin>> {
        while self.place == Place::Within {
            self.next_record()?;
        }
        if self.place == Place::End {
            return Ok(None);
        }
        let begin = loop {
            let Some(bytes) = self.read_head()? else { return Ok(None) };
            self.sum = Fletcher4::default();
            let Parsed { head, payload } = record::parse(&bytes, self.order)?;
            let begin = match head {
                Head::Begin(begin) => begin,
                Head::End { .. } if self.is_package => {
                    self.place = Place::End;
                    return Ok(None);
                }
                _ => return Err(corrupt("a record outside of a stream")),
            };
            self.sum.update(&bytes, self.order);
            self.read_payload(payload)?;
            if !begin.compound {
                break begin;
            }
            if self.is_package {
                return Err(corrupt("a package in a package"));
            }
            self.is_package = true;
            if payload > 0 {
                self.package = list::decode(&self.payload)?;
            }
            let bytes = self.read_head()?.ok_or(StreamError::Truncated(self.at))?;
            match record::parse(&bytes, self.order)?.head {
                Head::End { sum } => self.check_end(sum)?,
                _ => return Err(corrupt("the end of a package's list")),
            }
            self.place = Place::Between;
        };
        self.place = Place::Within;
        Ok(Some(*begin))
    }

    /// The next record of the stream; none at its end, when all of it is proven.
    ///
    /// # Errors
    /// [`StreamError`]; then nothing more is to be read.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>> {
        if self.place != Place::Within {
            return Ok(None);
        }
        let bytes = self.read_head()?.ok_or(StreamError::Truncated(self.at))?;
        let Parsed { head, payload } = record::parse(&bytes, self.order)?;
        if let Head::End { sum } = head {
            self.check_end(sum)?;
            self.place = if self.is_package { Place::Between } else { Place::End };
            return Ok(None);
        }
        self.sum.update(&bytes[..SUMMED], self.order);
        let own = own_sum(&bytes, self.order);
        if own != [0; 4] && own != self.sum.0 {
            return Err(StreamError::Checksum(self.at));
        }
        self.sum.update(&bytes[SUMMED..], self.order);
        self.read_payload(payload)?;
        Ok(Some(match head {
            Head::Begin(_) => return Err(corrupt("a stream in a stream")),
            Head::End { .. } => return Ok(None),
            Head::Object(object) => Record::Object(object, &self.payload[..object.bonus_len as usize]),
            Head::FreeObjects { first, count } => Record::FreeObjects { first, count },
            Head::Free { object, offset, len } => Record::Free { object, offset, len },
            Head::Write { object, offset, len, codec, .. } => {
                let data = self.plain(codec, len)?;
                Record::Write { object, offset, data }
            }
            Head::Spill { object, len, codec, packed } => {
                let data = self.plain(if packed == 0 { 0 } else { codec }, len)?;
                Record::Spill { object, data }
            }
            Head::Embedded { object, offset, len, codec, plain, packed } => {
                self.payload.truncate(packed as usize);
                let mut data = std::mem::take(&mut self.plain);
                data.clear();
                data.resize(len as usize, 0);
                decompress(codec, &self.payload, &mut data[..plain as usize])?;
                self.plain = data;
                Record::Write { object, offset, data: &self.plain }
            }
        }))
    }

    fn plain(&mut self, codec: u8, len: u64) -> Result<&[u8]> {
        if codec == 0 {
            return Ok(&self.payload);
        }
        self.plain.resize(len as usize, 0);
        decompress(codec, &self.payload, &mut self.plain)?;
        Ok(&self.plain)
    }

    fn check_end(&self, sum: [u64; 4]) -> Result<()> {
        if sum == self.sum.0 { Ok(()) } else { Err(StreamError::Checksum(self.at)) }
    }

    /// The next 312 bytes; none at the end of all streams.
    fn read_head(&mut self) -> Result<Option<[u8; LEN]>> {
        let mut bytes = [0; LEN];
        let mut filled = 0;
        while filled < LEN {
            match self.input.read(&mut bytes[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(StreamError::Io(error.to_string())),
            }
        }
        self.at += filled as u64;
        match (filled, self.place) {
            (0, Place::Start) => return Err(StreamError::NotAStream),
            (0, Place::Between | Place::End) if !self.is_package => return Ok(None),
            (LEN, Place::Start) => {
                self.order = order_of(&bytes).ok_or(StreamError::NotAStream)?;
                self.place = Place::Between;
            }
            (_, Place::Start) => return Err(StreamError::NotAStream),
            (LEN, _) => {}
            _ => return Err(StreamError::Truncated(self.at)),
        }
        Ok(Some(bytes))
    }

    /// Reads a payload and sums it up. What a damaged length claims is not allocated before it is there.
    fn read_payload(&mut self, len: usize) -> Result<()> {
        self.payload.clear();
        let read = (&mut self.input).take(len as u64).read_to_end(&mut self.payload);
        let read = read.map_err(|error| StreamError::Io(error.to_string()))?;
        self.at += read as u64;
        if read < len {
            return Err(StreamError::Truncated(self.at));
        }
        if !len.is_multiple_of(4) {
            return Err(corrupt("a payload's length"));
        }
        self.sum.update(&self.payload, self.order);
        Ok(())
    }
}

impl<R: Read> Streams<R> {
    /// As [`Streams::next_stream`], refusing streams that are not taken.
    ///
    /// # Errors
    /// As [`Streams::next_stream`], and [`StreamError::Refused`].
    pub fn next_taken(&mut self) -> Result<Option<Begin>> {
        let begin = self.next_stream()?;
        if let Some(begin) = &begin {
            begin.check().map_err(|refusal: Refusal| StreamError::Refused(refusal))?;
        }
        Ok(begin)
    }
}

/// Makes the checksums of a stream right, as far as its records can be read: for tests that damage what is behind them.
pub fn repair_sums(bytes: &mut [u8]) {
    let order = bytes.first_chunk().and_then(order_of).unwrap_or(Order::Little);
    let put = |bytes: &mut [u8], sums: [u64; 4]| {
        for (word, sum) in bytes.chunks_exact_mut(8).zip(sums) {
            word.copy_from_slice(&if order == Order::Little { sum.to_le_bytes() } else { sum.to_be_bytes() });
        }
    };
    let (mut sum, mut at) = (Fletcher4::default(), 0);
    while let Some(head) = bytes.get(at..).and_then(<[u8]>::first_chunk::<LEN>) {
        let Ok(Parsed { head, payload }) = record::parse(head, order) else { return };
        let end = (at + LEN).saturating_add(payload).min(bytes.len());
        match head {
            Head::Begin(_) => sum = Fletcher4::default(),
            Head::End { .. } => put(&mut bytes[at + 8..at + 40], sum.0),
            _ => {}
        }
        sum.update(&bytes[at..at + SUMMED], order);
        if !matches!(head, Head::Begin(_)) && own_sum_is_there(&bytes[at..at + LEN]) {
            put(&mut bytes[at + SUMMED..at + LEN], sum.0);
        }
        sum.update(&bytes[at + SUMMED..end], order);
        at = end;
    }
}

fn own_sum_is_there(record: &[u8]) -> bool {
    record[SUMMED..].iter().any(|&byte| byte != 0)
}
