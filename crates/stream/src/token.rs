//! Tokens, by which a sender learns where a stream broke off. They are made of hexadecimal digits and dashes alone, so
//! that they go through any shell without quotes.

use larder_format::node::Key;
use twox_hash::XxHash3_64;

/// Place in a stream to go on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// GUID of the snapshot that was on its way.
    pub to: u64,
    /// GUID of the snapshot that it builds upon; 0 without.
    pub from: u64,
    /// The key behind which the rest begins; none when nothing came.
    pub position: Option<Key>,
    /// Bytes that came.
    pub bytes: u64,
    /// Full name of the snapshot, as the sender called it.
    pub name: String,
}

/// Version of tokens.
const VERSION: &str = "1";

impl Token {
    /// As people are shown it.
    pub fn encode(&self) -> String {
        let mut bytes = Vec::new();
        for number in [self.to, self.from, self.bytes] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let key = self.position.unwrap_or(Key::MIN);
        bytes.push(u8::from(self.position.is_some()));
        bytes.extend_from_slice(&key.object.to_le_bytes());
        bytes.push(key.kind);
        bytes.extend_from_slice(&key.offset.to_le_bytes());
        bytes.extend_from_slice(self.name.as_bytes());
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{VERSION}-{:016x}-{digits}", XxHash3_64::oneshot(&bytes))
    }

    /// Reads one; `None` when it is not one, or not whole.
    pub fn decode(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(VERSION)?.strip_prefix('-')?;
        let (sum, digits) = rest.split_once('-')?;
        if digits.len() % 2 > 0 || digits.len() > 4096 || !digits.bytes().all(|one| one.is_ascii_hexdigit()) {
            return None;
        }
        let pairs = (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16));
        let bytes = pairs.collect::<Result<Vec<u8>, _>>().ok()?;
        if u64::from_str_radix(sum, 16).ok()? != XxHash3_64::oneshot(&bytes) {
            return None;
        }
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let key = Key { object: number(25)?, kind: *bytes.get(33)?, offset: number(34)? };
        Some(Self {
            to: number(0)?,
            from: number(8)?,
            bytes: number(16)?,
            position: (bytes[24] != 0).then_some(key),
            name: String::from_utf8(bytes[42..].to_vec()).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_whole_or_not_at_all() {
        let position = Some(Key::new(7, 1, 131_072));
        let token = Token { to: 1, from: u64::MAX, position, bytes: 9, name: "tank/a b@x".into() };
        let text = token.encode();
        assert!(text.bytes().all(|one| one == b'-' || one.is_ascii_hexdigit() && !one.is_ascii_uppercase()));
        assert_eq!(Token::decode(&text), Some(token.clone()));
        for at in 0..text.len() {
            let mut other = text.clone().into_bytes();
            other[at] = if other[at] == b'0' { b'1' } else { b'0' };
            assert_eq!(Token::decode(&String::from_utf8(other).unwrap()), None, "{at}");
            assert_eq!(Token::decode(&text[..at]), None, "{at}");
        }
        let none = Token { position: None, ..token };
        assert_eq!(Token::decode(&none.encode()), Some(none));
    }
}
