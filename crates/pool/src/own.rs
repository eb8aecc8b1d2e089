//! Properties that a dataset has itself: those that were set on it, and those that streams brought.
//!
//! As in zfsprops(7), a value that was set here comes before one that a stream brought, and that before the parent's.
//! Of each property there are two entries in the tables: one says what was done here ([`Here`]), the other what the
//! last stream with properties said. Neither touches the other, so a stream replaces what streams brought and nothing
//! else, and taking a value away here shows again what was received, or not, as was asked for.

use larder_format::property::{PropertyRecord, PropertySource};
use std::collections::{BTreeMap, BTreeSet};

/// State of a property on a dataset itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Here {
    /// Nothing: a received value has effect, else the parent's.
    Nothing,
    /// It was set.
    Set(String),
    /// A received value has no effect, now or later.
    Masked,
}

/// Properties of one dataset, without those that it inherits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnProperties {
    local: BTreeMap<String, String>,
    received: BTreeMap<String, String>,
    masked: BTreeSet<String>,
}

impl OwnProperties {
    /// Those that are set on a dataset that is made.
    pub(crate) fn of_new(local: BTreeMap<String, String>) -> Self {
        Self { local, ..Self::default() }
    }

    /// Those that were set here.
    pub fn local(&self) -> &BTreeMap<String, String> {
        &self.local
    }

    /// Those that streams brought, whether they have effect or not.
    pub fn received(&self) -> &BTreeMap<String, String> {
        &self.received
    }

    /// The value that has effect, and whether it was received; none where it is the parent's.
    pub fn get(&self, name: &str) -> Option<(&str, bool)> {
        let local = self.local.get(name).map(|value| (value.as_str(), false));
        local.or_else(|| {
            let received = self.received.get(name).filter(|_| !self.masked.contains(name))?;
            Some((received.as_str(), true))
        })
    }

    /// All that have effect.
    pub fn effective(&self) -> BTreeMap<String, String> {
        let names = self.local.keys().chain(self.received.keys());
        names.filter_map(|name| Some((name.clone(), self.get(name)?.0.to_owned()))).collect()
    }

    /// Those of one name alone.
    pub(crate) fn of_one(&self, name: &str) -> Self {
        let one = |all: &BTreeMap<String, String>| {
            all.get_key_value(name).map(|(name, value)| (name.clone(), value.clone())).into_iter().collect()
        };
        let masked = self.masked.get(name).cloned().into_iter().collect();
        Self { local: one(&self.local), received: one(&self.received), masked }
    }

    /// State of a property here.
    pub fn here(&self, name: &str) -> Here {
        match self.local.get(name) {
            Some(value) => Here::Set(value.clone()),
            None if self.masked.contains(name) => Here::Masked,
            None => Here::Nothing,
        }
    }

    /// Entries of the tables for one property: of what was done here, and of what streams brought.
    pub(crate) fn entries(&self, name: &str) -> [(PropertySource, Option<PropertyRecord>); 2] {
        let record = |value: String, source| PropertyRecord { name: name.to_owned(), value, source };
        let here = match self.here(name) {
            Here::Nothing => None,
            Here::Set(value) => Some(record(value, PropertySource::Local)),
            Here::Masked => Some(record(String::new(), PropertySource::Masked)),
        };
        let received = self.received.get(name).map(|value| record(value.clone(), PropertySource::Received));
        [(PropertySource::Local, here), (PropertySource::Received, received)]
    }

    pub(crate) fn set_here(&mut self, name: &str, here: Here) {
        self.local.remove(name);
        self.masked.remove(name);
        match here {
            Here::Nothing => {}
            Here::Set(value) => drop(self.local.insert(name.to_owned(), value)),
            Here::Masked => drop(self.masked.insert(name.to_owned())),
        }
    }

    pub(crate) fn set_received(&mut self, name: &str, value: Option<String>) {
        match value {
            Some(value) => drop(self.received.insert(name.to_owned(), value)),
            None => drop(self.received.remove(name)),
        }
    }

    /// Takes in what the tables say.
    pub(crate) fn adopt(&mut self, record: PropertyRecord) {
        match record.source {
            PropertySource::Local => drop(self.local.insert(record.name, record.value)),
            PropertySource::Received => drop(self.received.insert(record.name, record.value)),
            PropertySource::Masked => drop(self.masked.insert(record.name)),
        }
    }

    /// Entries of the tables for all of them.
    pub(crate) fn records(&self) -> impl Iterator<Item = PropertyRecord> {
        let record = |source| {
            move |(name, value): (&String, &String)| PropertyRecord {
                name: name.clone(),
                value: value.clone(),
                source,
            }
        };
        let local = self.local.iter().map(record(PropertySource::Local));
        let received = self.received.iter().map(record(PropertySource::Received));
        let masked = self.masked.iter().map(|name| (name, String::new()));
        let masked = masked.map(move |(name, value)| record(PropertySource::Masked)((name, &value)));
        local.chain(received).chain(masked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_comes_before_what_was_received_and_either_can_be_masked() {
        let mut own = OwnProperties::default();
        own.set_received("atime", Some("off".into()));
        assert_eq!(own.get("atime"), Some(("off", true)));
        own.set_here("atime", Here::Set("on".into()));
        assert_eq!(own.get("atime"), Some(("on", false)));
        own.set_here("atime", Here::Masked);
        assert_eq!((own.get("atime"), own.here("atime")), (None, Here::Masked));
        assert_eq!(own.received()["atime"], "off");
        own.set_received("atime", Some("relatime".into()));
        assert_eq!(own.get("atime"), None, "the mask outlives what it was put over");
        own.set_here("atime", Here::Nothing);
        assert_eq!(own.effective()["atime"], "relatime");
    }

    #[test]
    fn the_tables_give_back_what_they_were_told() {
        let mut own = OwnProperties::of_new([("atime".into(), "off".into())].into());
        own.set_received("atime", Some("on".into()));
        own.set_received("snapdir", Some("visible".into()));
        own.set_here("snapdir", Here::Masked);
        let mut again = OwnProperties::default();
        own.records().for_each(|record| again.adopt(record));
        assert_eq!(again, own);
    }
}
