//! Result of a read: parts of the file in their order, shared with the cache where they can be, so that
//! bytes are copied once, into the reply.

use larder_pool::cache::Record;

/// Zeros that holes are shown from.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The bytes of a read.
#[derive(Debug, Default)]
pub struct ReadData {
    parts: Vec<Part>,
    len: usize,
}

#[derive(Debug)]
enum Part {
    Bytes(Record),
    Zeros(usize),
}

impl ReadData {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds bytes.
    pub fn push(&mut self, bytes: Record) {
        self.len += bytes.len();
        self.parts.push(Part::Bytes(bytes));
    }

    /// Adds `len` zeros.
    pub fn push_zeros(&mut self, len: usize) {
        self.len += len;
        self.parts.push(Part::Zeros(len));
    }

    /// The bytes, as slices that lie one behind the other; none is empty.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let chunks = self.parts.iter().flat_map(|part| {
            let (bytes, zeros) = match part {
                Part::Bytes(bytes) => (bytes.as_ref(), 0),
                Part::Zeros(len) => (&[][..], *len),
            };
            let pieces = (0..zeros.div_ceil(ZEROS.len())).map(move |i| {
                let len = ZEROS.len().min(zeros - i * ZEROS.len());
                &ZEROS[..len]
            });
            std::iter::once(bytes).chain(pieces)
        });
        chunks.filter(|slice| !slice.is_empty())
    }

    /// Copies the bytes to the beginning of `out`.
    ///
    /// # Panics
    /// When `out` is too short.
    pub fn copy_to(&self, out: &mut [u8]) {
        let mut at = 0;
        for slice in self.slices() {
            out[at..at + slice.len()].copy_from_slice(slice);
            at += slice.len();
        }
    }

    /// The bytes in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len);
        self.slices().for_each(|slice| out.extend_from_slice(slice));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_in_order_and_zeros_count() {
        let mut data = ReadData::default();
        data.push(vec![1, 2].into());
        data.push(Record::from(vec![9, 3, 4, 9]).slice(1..3));
        data.push_zeros(ZEROS.len() + 5);
        data.push(Record::new());
        let mut wanted = vec![1, 2, 3, 4];
        wanted.resize(4 + ZEROS.len() + 5, 0);
        assert_eq!(data.len(), wanted.len());
        assert_eq!(data.to_vec(), wanted);
        let mut out = vec![7; wanted.len() + 1];
        data.copy_to(&mut out);
        assert_eq!((&out[..wanted.len()], out[wanted.len()]), (&wanted[..], 7));
    }
}
