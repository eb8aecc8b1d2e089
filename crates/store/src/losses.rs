//! Data lost with devices, and the number of devices that can still be lost.

use crate::Store;
use larder_format::DeviceIndex;
use std::collections::BTreeSet;

impl Store {
    /// Data that cannot be read though each group could do without its lost devices: it was written when its
    /// group had another shape, and lies on these alone. In plain words, with their names.
    pub fn out_of_reach(&self) -> Option<String> {
        let is_lost =
            |device: DeviceIndex| self.members.find(device).is_none_or(|member| !member.is_online());
        if self.members.iter().all(|member| member.is_online()) {
            return None;
        }
        let core = self.core.lock();
        let (mut lost, mut bytes) = (BTreeSet::new(), 0);
        for entry in core.entries.values().filter(|entry| entry.live_blocks > 0) {
            let segment = &entry.segment;
            if !segment.layout.survives(|column| is_lost(segment.slots[column].device)) {
                lost.extend(segment.slots.iter().map(|slot| slot.device).filter(|&device| is_lost(device)));
                bytes += entry.live_bytes;
            }
        }
        drop(core);
        let name = |device: DeviceIndex| {
            self.members.find(device).map_or_else(|| format!("device {device}"), |member| member.name())
        };
        let names: Vec<String> = lost.into_iter().map(name).collect();
        (!names.is_empty()).then(|| {
            format!(
                "{} KiB that were written before the group had its present shape are only on what is missing or out \
                 of date: {}",
                bytes.div_ceil(1024),
                names.join(", ")
            )
        })
    }

    /// Number of further devices of the log, whichever they are, that can be lost before it is; none where it has no
    /// devices of its own, or has lost them.
    pub fn log_survives(&self) -> Option<usize> {
        let core = self.core.lock();
        let logs = core.groups.values().filter(|group| !group.is_vital());
        let left = logs.filter_map(|group| {
            let members: Vec<_> = self.members.of_group(group.index).collect();
            let is_lost = |column: usize| members.get(column).is_none_or(|member| !member.is_online());
            group.rule.layout.losses_survived(is_lost)
        });
        left.min()
    }

    /// Number of further devices, whichever they are, that can be lost without loss of data.
    pub fn losses_survived(&self) -> usize {
        let is_lost =
            |device: DeviceIndex| self.members.find(device).is_none_or(|member| !member.is_online());
        let core = self.core.lock();
        let by_rule = core.vital_groups().map(|group| {
            let members: Vec<_> = self.members.of_group(group.index).collect();
            let is_out = |column: usize| members.get(column).is_none_or(|member| !member.is_online());
            group.rule.layout.losses_survived(is_out)
        });
        let misfits = core.misfits().filter(|entry| entry.live_blocks > 0);
        let by_segment = misfits.map(|entry| {
            let segment = &entry.segment;
            segment.layout.losses_survived(|column| is_lost(segment.slots[column].device))
        });
        by_rule.chain(by_segment).map(|left| left.unwrap_or(0)).min().unwrap_or(0)
    }
}
