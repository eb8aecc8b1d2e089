//! Results of fsync when devices refuse, and when it is called again.

use crate::bed::{Bed, ROOT};
use larder_files::*;
use larder_format::ByteLen;
use larder_sim::{Fault, SimWorld, Survival};
use std::sync::Arc;

#[test]
fn an_fsync_that_was_refused_is_refused_again_until_what_it_promises_is_there() {
    // By the log, and by a commit.
    for (len, fault) in [5_000, 2_000_000]
        .into_iter()
        .flat_map(|len| [Fault::FailWrites(0..u64::MAX), Fault::FailFlushes].map(|fault| (len, fault)))
    {
        let case = format!("{len} bytes, {fault:?}");
        let bed = Bed::with_layout("single", &[ByteLen::new(64 << 20)], &[("compression", "off")]);
        let node = bed.file(ROOT, "file");
        bed.write(node, 0, &vec![1; len]);
        bed.pool.commit().unwrap();
        bed.sim.device(0).inject(fault);
        bed.write(node, 0, &vec![2; len]);
        let fsync = || bed.mount.fsync(node, Handle(0), false);
        for _ in 0..3 {
            assert!(fsync().is_err(), "{case}");
        }
        bed.sim.device(0).clear_faults();
        assert!(fsync().is_err(), "{case}: nobody has said that it is well again");
        let goes_on = bed.upkeep.devices.clear(None).is_ok();
        assert_eq!(fsync().is_ok(), goes_on, "{case}");
        let trace = bed.sim.trace();
        let images = trace.crash_images(trace.len(), Survival::DropAll);
        let after = Bed::import(SimWorld::from_images(images), Arc::clone(&bed.clock), 2);
        let content = after.content(after.find("file").unwrap().node);
        let versions = if goes_on { 2..=2 } else { 1..=2 };
        assert!(versions.contains(&content[0]) && content == vec![content[0]; len], "{case}: {}", content[0]);
    }
}
