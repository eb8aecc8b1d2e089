//! A dataset goes back to a snapshot while somebody looks into a newer one that was destroyed: it is refused by name,
//! or done, and in between nothing waits for the reader by trying over and over.

use crate::bed::Bed;
use crate::cuts::{Tasks, attach, committing, explore, rest, task};
use larder_files::NodeId;
use larder_format::ByteLen;
use larder_format::items::ROOT_INODE;
use larder_pool::{PoolError, SnapshotView};
use larder_sim::DeviceImage;

const LEN: usize = 9_000;

fn bytes(letter: u8) -> Vec<u8> {
    (0..LEN).map(|i| letter ^ (i / 251) as u8).collect()
}

/// A dataset with snapshots `a` and `b`; `b` was destroyed, and is there for the clone `c` alone.
fn prepared() -> Vec<DeviceImage> {
    let bed = Bed::with_layout("single", &[ByteLen::new(64 << 20)], &[("recordsize", "4096")]);
    let id = bed.pool.create_dataset("tank/d1", Default::default()).unwrap().id();
    bed.pool.commit().unwrap();
    attach(&bed);
    let file = bed.file(NodeId::pack(id, ROOT_INODE), "file");
    for (letter, name) in [(1, "a"), (2, "b")] {
        bed.write(file, 0, &bytes(letter));
        bed.pool.snapshot(id, name).unwrap();
    }
    bed.write(file, 0, &bytes(3));
    bed.pool.clone_snapshot(id, "b", "tank/c", Default::default()).unwrap();
    bed.pool.destroy_snapshot(id, "b").unwrap();
    bed.pool.commit().unwrap();
    bed.sim.images()
}

/// Looks into the snapshot that has no name any more, if it is still there.
fn looked_into(bed: &Bed) -> Option<SnapshotView> {
    let id = bed.pool.dataset_by_name("tank/d1").unwrap().id();
    let hidden = bed.pool.hidden_snapshots(id).into_iter().next()?;
    bed.pool.snapshot_view_of(id, hidden.high)
}

#[test]
fn a_rollback_beside_a_reader_is_refused_by_name_or_done_and_does_not_spin() {
    let images = [prepared()];
    let tasks: Tasks<()> = |seed, bed, ()| {
        let reader = move || {
            let view = looked_into(bed);
            let clone = bed.pool.dataset_by_name("tank/c").unwrap().id();
            let _ = bed.mount.detach(clone);
            bed.pool.destroy_dataset(clone).unwrap();
            rest(20 + seed % 40);
            drop(view);
        };
        let roller = move || {
            let id = bed.pool.dataset_by_name("tank/d1").unwrap().id();
            let _ = bed.mount.detach(id);
            // Others may have no turn meanwhile.
            for _ in 0..20 {
                let before = bed.pool.store().durable_commit().get();
                let rolled = bed.pool.rollback(id, "a", true);
                let commits = bed.pool.store().durable_commit().get() - before;
                assert!(commits < 12, "{commits} commits in one attempt");
                match rolled {
                    Ok(()) => break,
                    Err(PoolError::Busy(why)) => {
                        let named =
                            why.contains("which was destroyed, is in use") || why.contains("origin of");
                        assert!(named, "{why}");
                    }
                    Err(error) => panic!("{error}"),
                }
                rest(1);
            }
        };
        vec![task("reader", reader), task("roller", roller), committing(bed, 3, 10)]
    };
    explore(&images, tasks, |bed, ()| {
        let found = bed.find("d1/file").map(|at| bed.content(at.node));
        match found {
            Ok(found) if found == bytes(1) || found == bytes(3) => Ok(()),
            _ => Err("the dataset is neither what it was nor what the snapshot was".to_owned()),
        }
    });
}
