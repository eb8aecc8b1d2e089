//! Lists of names and values (`nvlist`, as `nvlist_pack` writes them in XDR).

use crate::bytes::{Cursor, Order};
use crate::error::{Result, corrupt};

/// Lists inside each other before they are taken for damaged.
const MAX_DEPTH: u32 = 32;

/// A list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct List(Vec<(Vec<u8>, Value)>);

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// The name says all.
    Present,
    /// A number of any width, or a truth value.
    Number(u64),
    /// Text without its NUL.
    Text(Vec<u8>),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A list.
    List(List),
    /// Lists, numbers or texts.
    Many(Vec<Value>),
}

impl List {
    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(here, _)| here == name.as_bytes()).map(|(_, value)| value)
    }

    /// Names and values, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Value)> {
        self.0.iter().map(|(name, value)| (name.as_slice(), value))
    }
}

/// Decodes a packed list; none for one in the machine's own layout, which no program writes into a stream for
/// others to read.
///
/// # Errors
/// When it is damaged.
pub fn decode(bytes: &[u8]) -> Result<Option<List>> {
    let mut cursor = Cursor::new(bytes, Order::Big, "a list of names and values");
    let head = cursor.take(4)?;
    if head[0] != 1 {
        return Ok(None);
    }
    decode_list(&mut cursor, 0).map(Some)
}

fn decode_list(cursor: &mut Cursor<'_>, depth: u32) -> Result<List> {
    if depth > MAX_DEPTH {
        return Err(corrupt("lists in lists"));
    }
    let (_version, _flags) = (cursor.u32()?, cursor.u32()?);
    let mut list = List::default();
    loop {
        if (cursor.u32()?, cursor.u32()?) == (0, 0) {
            return Ok(list);
        }
        let name = text(cursor)?;
        let (kind, count) = (cursor.u32()?, cursor.u32()?);
        let value = decode_value(cursor, kind, count, depth)?;
        list.0.push((name, value));
    }
}

fn text(cursor: &mut Cursor<'_>) -> Result<Vec<u8>> {
    let text = cursor.counted()?;
    cursor.take(text.len().next_multiple_of(4) - text.len())?;
    Ok(text.to_vec())
}

fn decode_value(cursor: &mut Cursor<'_>, kind: u32, count: u32, depth: u32) -> Result<Value> {
    let mut many = |one: fn(&mut Cursor<'_>) -> Result<Value>, counted: bool| {
        if counted {
            cursor.u32()?;
        }
        (0..count).map(|_| one(cursor)).collect::<Result<Vec<_>>>().map(Value::Many)
    };
    let small = |cursor: &mut Cursor<'_>| Ok(Value::Number(u64::from(cursor.u32()?)));
    let large = |cursor: &mut Cursor<'_>| Ok(Value::Number(cursor.u64()?));
    Ok(match kind {
        1 => Value::Present,
        // A byte, 16 and 32 bits, a truth value, 8 bits.
        2..=6 | 21..=23 => small(cursor)?,
        7 | 8 | 18 | 27 => large(cursor)?,
        9 => Value::Text(text(cursor)?),
        10 => {
            let bytes = cursor.take(count as usize)?.to_vec();
            cursor.take(bytes.len().next_multiple_of(4) - bytes.len())?;
            Value::Bytes(bytes)
        }
        11..=14 | 24..=26 => many(small, true)?,
        15 | 16 => many(large, true)?,
        17 => many(|cursor| Ok(Value::Text(text(cursor)?)), false)?,
        19 => Value::List(decode_list(cursor, depth + 1)?),
        20 => {
            let lists = (0..count).map(|_| decode_list(cursor, depth + 1).map(Value::List));
            Value::Many(lists.collect::<Result<_>>()?)
        }
        _ => return Err(corrupt("a value of an unknown kind")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_packed_list_are_found() {
        let mut bytes = vec![1, 1, 0, 0];
        let mut put = |words: &[u32]| words.iter().for_each(|word| bytes.extend(word.to_be_bytes()));
        put(&[0, 1]);
        // "ab": bytes 1 2 3; "cd": 7 in 64 bits; "ef": a list with "x".
        put(&[32, 32, 2, u32::from_be_bytes(*b"ab\0\0"), 10, 3, 0x0102_0300]);
        put(&[32, 32, 2, u32::from_be_bytes(*b"cd\0\0"), 8, 1, 0, 7]);
        put(&[32, 32, 2, u32::from_be_bytes(*b"ef\0\0"), 19, 1, 0, 1]);
        put(&[24, 24, 1, u32::from_be_bytes(*b"x\0\0\0"), 9, 1, 2, u32::from_be_bytes(*b"yz\0\0"), 0, 0]);
        put(&[0, 0]);
        let list = decode(&bytes).unwrap().unwrap();
        assert_eq!(list.get("ab"), Some(&Value::Bytes(vec![1, 2, 3])));
        assert_eq!(list.get("cd"), Some(&Value::Number(7)));
        let Some(Value::List(inner)) = list.get("ef") else { panic!("{list:?}") };
        assert_eq!(inner.get("x"), Some(&Value::Text(b"yz".to_vec())));
        for cut in 4..bytes.len() {
            assert!(decode(&bytes[..cut]).is_err(), "{cut}");
        }
    }
}
