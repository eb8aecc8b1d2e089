use crate::bed;
use larder_device::{Entropy, SeededEntropy};
use larder_format::ByteLen;
use larder_format::segment::SegmentState;
use larder_format::tables::Table;
use larder_sim::SimWorld;
use larder_store::segments::Listed;

/// Behind all that the pool itself notes.
const FIRST: u64 = 1 << 40;
const ENTRIES: u64 = 6_000;

#[test]
fn scattered_tables_take_bounded_room_and_no_commit_writes_all_of_them() {
    let sim = SimWorld::new(&[ByteLen::new(256 << 20)]);
    let pool = bed::pool(sim.devices(), "single");
    let rng = SeededEntropy::new(5);
    let put = |number: u64| {
        let value: Vec<u8> = (0..100).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
        pool.change_tables(&[(Table::Events.key(FIRST + number), Some(value))]).unwrap();
    };
    (0..ENTRIES).for_each(put);
    pool.commit().unwrap();
    let nodes = pool.table_nodes().unwrap().len() as u64;
    assert!(nodes > 300, "{nodes}");
    let mut most_written = 0;
    for commit in 0..300 {
        (0..20).for_each(|_| put(rng.next_u64() % ENTRIES));
        let before = pool.shared.store.core.lock().next_block;
        pool.commit().unwrap();
        let core = pool.shared.store.core.lock();
        most_written = most_written.max(core.next_block.get() - before.get());
        let closed = core.entries.listed(Listed::Table).filter(|entry| entry.state == SegmentState::Closed);
        let (live, height) = closed.fold((0, 0), |(live, height), entry| {
            (live + entry.live_bytes, height + u64::from(entry.height))
        });
        assert!(height <= 4 * live + (4 << 20), "commit {commit}: {height} bytes for {live}");
    }
    assert!(most_written > 30, "nothing was written anew: {most_written}");
    assert!(most_written < nodes / 2, "{most_written} of {nodes} at once");
    let read = crate::contents::Contents::read(&pool.tables.lock(), &pool.shared.store).unwrap();
    let mut numbers: Vec<u64> = read.kept.iter().map(|(_, number, _)| *number).collect();
    numbers.retain(|number| *number >= FIRST);
    assert!(numbers.into_iter().eq(FIRST..FIRST + ENTRIES), "all is there, in order");
}
