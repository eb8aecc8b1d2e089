//! Shape of a pool, as it is and would be, for verbs that change which devices it is made of.

use super::super::roster;
use crate::api::Result;
use crate::api::pool::{Group, Role, Word};
use crate::api::repair::Shape;
use larder_format::label::GroupRule;
use larder_format::{DeviceIndex, GroupIndex};
use larder_pool::Pool;
use larder_pool::member::Member;
use std::sync::Arc;

/// Records that free space is told in.
pub const RECORD: u32 = 128 << 10;

/// A place in a group.
#[derive(Clone)]
pub struct Column {
    pub index: Option<DeviceIndex>,
    pub path: String,
    pub lost: bool,
}

/// A group as it is or would be.
#[derive(Clone)]
pub struct Part {
    pub index: Option<GroupIndex>,
    pub role: Role,
    pub word: Word,
    pub columns: Vec<Column>,
}

impl Part {
    /// Its rule, if so many devices make one.
    pub fn rule(&self) -> Option<GroupRule> {
        self.word.rule(self.columns.len())
    }

    /// Gives a mirror that became narrower or wider the word that it has now.
    pub fn reword(&mut self) -> Result<()> {
        self.word = if self.columns.len() == 1 { Word::Single } else { Word::Mirror };
        let devices = self.columns.iter().map(|column| column.path.clone()).collect();
        Group { role: self.role, word: self.word, devices }.check()
    }
}

/// A pool as it is or would be.
#[derive(Clone)]
pub struct Plan {
    pub groups: Vec<Part>,
    pub spares: Vec<String>,
    pub caches: Vec<String>,
    pub usable: u64,
}

impl Plan {
    /// As it is.
    pub fn of(pool: &Pool) -> Self {
        let groups = pool.store().groups().into_iter().map(|group| Part {
            index: Some(group.index),
            role: Role::of(group.role),
            word: Word::parse(&group.rule.name()).unwrap_or(Word::Single),
            columns: pool
                .store()
                .members()
                .of_group(group.index)
                .map(|member| Column {
                    index: Some(member.index),
                    path: roster::called(pool, &member),
                    lost: !member.is_online(),
                })
                .collect(),
        });
        let members = pool.store().members();
        let called =
            |devices: Vec<Arc<Member>>| devices.iter().map(|one| roster::called(pool, one)).collect();
        Self {
            groups: groups.collect(),
            spares: called(members.spares()),
            caches: called(members.caches()),
            usable: pool.store().space(RECORD).size,
        }
    }

    /// The group in which a device has a place.
    pub fn group_of(&mut self, device: DeviceIndex) -> Option<&mut Part> {
        self.groups
            .iter_mut()
            .filter(|group| group.index.is_some())
            .find(|group| group.columns.iter().any(|column| column.index == Some(device)))
    }

    /// Has another device take a place.
    pub fn put(&mut self, device: DeviceIndex, path: &str) {
        let columns = self.groups.iter_mut().flat_map(|group| &mut group.columns);
        for column in columns.filter(|column| column.index == Some(device)) {
            path.clone_into(&mut column.path);
            column.lost = false;
        }
    }

    /// For people.
    pub fn shape(&self) -> Shape {
        let vital = self.groups.iter().filter(|group| group.role != Role::Log);
        let survives = vital.filter_map(|group| {
            let left = group.rule()?.layout.losses_survived(|column| group.columns[column].lost);
            Some(left.map_or(0, |left| u32::try_from(left).unwrap_or(u32::MAX)))
        });
        let devices = |group: &Part| group.columns.iter().map(|column| column.path.clone()).collect();
        Shape {
            survives: survives.min().unwrap_or(0),
            groups: self
                .groups
                .iter()
                .map(|group| Group { role: group.role, word: group.word, devices: devices(group) })
                .collect(),
            spares: self.spares.clone(),
            caches: self.caches.clone(),
            usable: self.usable,
        }
    }
}
