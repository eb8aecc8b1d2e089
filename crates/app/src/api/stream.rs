//! Requests and replies of `larder fs send` and `larder fs receive`. A stream that is sent is a reply in parts, see
//! [`Part`]; one that is received comes behind the request: its length as u32, little-endian, its JSON, then it.

use super::fs::exact_at_creation;
use super::{ApiError, ErrorKind, Properties, Result, name};
use serde::{Deserialize, Serialize};

/// Sends a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Send {
    /// Its full name; empty with a token.
    pub snapshot: String,
    /// The snapshot or bookmark that it builds upon, by its full name.
    pub from: Option<String>,
    /// With all snapshots between.
    pub intermediates: bool,
    /// With all datasets below, all their snapshots, and properties.
    pub replicate: bool,
    /// With properties of the dataset.
    pub properties: bool,
    /// With those that streams brought to it, in place of those that have effect here, where streams brought any.
    pub backup: bool,
    /// With holds.
    pub holds: bool,
    /// Pass over datasets below that have no such snapshot; else they are a reason to refuse.
    pub skip_missing: bool,
    /// Only tell.
    pub dry_run: bool,
    /// Tell how much comes, which takes a look at all that does.
    pub measured: bool,
    /// Go on where a stream broke off.
    pub token: Option<String>,
}

impl Send {
    /// The request, when its parts make sense: the earlier snapshot may be `@NAME` alone.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(mut self) -> Result<Self> {
        if self.token.is_some() {
            return match self.snapshot.is_empty() && self.from.is_none() {
                true => Ok(self),
                false => Err(ApiError::usage("a token says by itself what is sent")),
            };
        }
        if !self.snapshot.contains('@') {
            // Scripts try flags on names that are not there: it is no wrong usage.
            let message = format!("cannot send '{}': it is no snapshot", self.snapshot);
            return Err(ApiError::new(ErrorKind::NotFound, message));
        }
        let (dataset, _) = name::check_snapshot(&self.snapshot)?;
        if let Some(from) = self.from.take() {
            let full = match from.chars().next() {
                Some('@' | '#') => format!("{dataset}{from}"),
                _ if !from.contains(['@', '#', '/']) => format!("{dataset}@{from}"),
                _ => from,
            };
            self.from = Some(full);
        }
        Ok(self)
    }
}

/// A snapshot that is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// Its full name.
    pub to: String,
    /// The snapshot that it builds upon, by its full name.
    pub from: Option<String>,
    /// Bytes of the stream, about; 0 where they were not asked for.
    pub bytes: u64,
    /// The most that they may be, about, where that is more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<u64>,
}

/// A part of what is sent: in front of each its kind, u8, and its length, u32, little-endian.
#[derive(Debug)]
pub enum Part {
    /// All snapshots that come; JSON.
    Plan(Vec<Planned>),
    /// Bytes of the stream.
    Data(Vec<u8>),
    /// The last one: it is whole, or the error; JSON.
    End(Option<ApiError>),
}

/// Takes the parts of what is sent, false when nobody wants more. It waits for a slow reader as long as its second
/// argument says.
pub type Emit<'a> = dyn FnMut(Part, &dyn Fn() -> bool) -> bool + 'a;

/// Kinds of parts.
pub const PART_PLAN: u8 = 0;
/// See [`PART_PLAN`].
pub const PART_DATA: u8 = 1;
/// See [`PART_PLAN`].
pub const PART_END: u8 = 2;
/// Bytes in front of a part.
pub const PART_HEAD: usize = 5;

impl Part {
    /// Its head and its bytes.
    pub fn encode(self) -> (Vec<u8>, Vec<u8>) {
        let json = |value: serde_json::Result<Vec<u8>>| value.unwrap_or_default();
        let (kind, bytes) = match self {
            Self::Plan(plan) => (PART_PLAN, json(serde_json::to_vec(&plan))),
            Self::Data(bytes) => (PART_DATA, bytes),
            Self::End(error) => (PART_END, json(serde_json::to_vec(&error))),
        };
        let mut head = vec![kind];
        head.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        (head, bytes)
    }
}

/// Receives a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receive {
    /// The dataset, or the snapshot, that it becomes.
    pub target: String,
    /// The dataset below that one to which it goes, of the sender's name.
    pub below: Below,
    /// Drop what is newer than what the stream builds upon.
    pub force: bool,
    /// Keep what came when it breaks off.
    pub resumable: bool,
    /// Leave it unmounted.
    pub unmounted: bool,
    /// Properties to set.
    pub properties: Properties,
    /// Properties of the stream to leave out.
    pub without: Vec<String>,
    /// Only tell.
    pub dry_run: bool,
}

impl Receive {
    /// The request with its properties in their exact form.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        Ok(Self { properties: exact_at_creation(self.properties)?, ..self })
    }
}

/// Part of the sender's name that counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Below {
    /// None: it goes to the dataset itself.
    #[default]
    Nothing,
    /// All but the pool.
    AllButPool,
    /// The last part.
    Last,
}

/// Drops what came of a stream that broke off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abort {
    /// The dataset.
    pub name: String,
}

/// A snapshot that was received.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceivedSnapshot {
    /// Its full name.
    pub name: String,
    /// Its full name where it was sent.
    pub sender: String,
    /// Whether it builds upon an earlier one.
    pub incremental: bool,
    /// Bytes of the stream.
    pub bytes: u64,
    /// Milliseconds that it took.
    pub millis: u64,
}

/// Outcome of receiving.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// All that is there now.
    pub received: Vec<ReceivedSnapshot>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_a_snapshot_and_trying_another_is_no_wrong_usage() {
        let send = |snapshot: &str, from: &str| {
            Send { snapshot: snapshot.into(), from: Some(from.into()), ..Send::default() }.checked()
        };
        assert_eq!(send("tank/a@x", "@w").unwrap().from.as_deref(), Some("tank/a@w"));
        assert_eq!(send("tank/a@x", "w").unwrap().from.as_deref(), Some("tank/a@w"));
        assert_eq!(send("tank/a@x", "tank/b@w").unwrap().from.as_deref(), Some("tank/b@w"));
        assert_eq!(send("a_test", "w").unwrap_err().exit_code(), 1);
    }

    #[test]
    fn properties_that_are_set_while_receiving_have_their_exact_form() {
        let receive = |name: &str, value: &str| {
            let properties = [(name.to_owned(), value.to_owned())].into();
            Receive { properties, ..Receive::default() }.checked()
        };
        assert_eq!(receive("recordsize", "128K").unwrap().properties["recordsize"], "131072");
        assert_eq!(receive("encryption", "off").unwrap().properties["encryption"], "off");
        assert!(receive("recordsize", "3K").is_err());
    }
}
