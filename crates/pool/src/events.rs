//! Events of the pool, and commands that changed it: see [`crate::event_log`].

use crate::pool::Pool;
use larder_format::ledger::{CommandRecord, EventRecord};

impl Pool {
    /// Events with numbers above `after`, oldest first; at most [`crate::event_log::EVENTS_AT_MOST`]. What happens
    /// again and again keeps its number while it is counted.
    pub fn events(&self, after: u64) -> Vec<(u64, EventRecord)> {
        self.log.events(&self.shared.store, &self.tables, after)
    }

    /// Forgets all events.
    pub fn clear_events(&self) {
        self.log.clear_events();
    }

    /// Keeps a command that changed the pool, done by a user of this host.
    pub fn log_command(&self, text: &str, uid: u32, user: &str) {
        let (time, host) = (self.shared.store.world.clock.now(), self.shared.store.world.host_name.clone());
        let (user, text) = (user.to_owned(), text.to_owned());
        self.log.keep_command(CommandRecord { time, uid, user, host, text });
    }

    /// The commands that changed the pool, oldest first: the first of all, and the newest
    /// [`crate::event_log::COMMANDS_AT_MOST`].
    pub fn commands(&self) -> Vec<CommandRecord> {
        self.log.commands(&self.shared.store, &self.tables)
    }

    /// Tells of devices that failed requests or changed their state since the last call.
    pub fn observe_devices(&self) {
        self.log.observe(&self.shared.store);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ImportOptions;
    use crate::create::{GroupSpec, PoolSpec, rule_for};
    use crate::event_log::{COMMANDS_AT_MOST, EVENTS_AT_MOST};
    use crate::open::{Scan, assemble, scan};
    use larder_device::{Inline, SeededEntropy};
    use larder_format::{ByteLen, DatasetId, DeviceGuid, HostId};
    use larder_sim::{SimClock, SimWorld};
    use larder_store::{Class, Event, World};
    use std::sync::Arc;
    use std::time::Duration;

    struct Bed {
        sim: SimWorld,
        clock: Arc<SimClock>,
        pool: Arc<Pool>,
    }

    fn world(clock: &Arc<SimClock>, seed: u64) -> World {
        World {
            clock: Arc::clone(clock) as _,
            entropy: Arc::new(SeededEntropy::new(seed)),
            workers: Arc::new(Inline),
            host: HostId::new(1),
            host_name: "sim".into(),
        }
    }

    fn bed() -> Bed {
        let (sim, clock) = (SimWorld::new(&[ByteLen::new(64 << 20)]), Arc::new(SimClock::new()));
        let groups = vec![GroupSpec::data(rule_for("single", 1).unwrap(), sim.devices())];
        let spec = PoolSpec { name: "tank".into(), groups, ashift: 12 };
        let pool = Pool::create(world(&clock, 1), spec).unwrap();
        Bed { sim, clock, pool }
    }

    impl Bed {
        /// As after a crash: what was committed comes back.
        fn crash(self, seed: u64) -> Self {
            let Self { sim, clock, pool } = self;
            drop(pool);
            let Scan::Member(found) = scan(&sim.devices()[0]) else { panic!("a pool's device") };
            let plan = assemble(vec![*found]).remove(0);
            let pool = Pool::import(world(&clock, seed), plan, &ImportOptions::default()).unwrap();
            Self { sim, clock, pool }
        }

        fn classes(&self) -> Vec<(String, u64)> {
            self.pool.events(0).into_iter().map(|(_, event)| (event.class, event.count)).collect()
        }
    }

    #[test]
    fn what_happens_again_within_a_minute_is_counted_also_once_it_is_written() {
        let bed = bed();
        let device = || Event::new(Class::Io).device(DeviceGuid::new(7), "/dev/x".into());
        bed.pool.shared.store.event(device());
        bed.pool.shared.store.event(device().times(4));
        bed.pool.shared.store.event(device().file(DatasetId::new(1), 9));
        bed.pool.commit().unwrap();
        bed.clock.advance(Duration::from_secs(30));
        bed.pool.shared.store.event(device());
        assert!(bed.pool.is_dirty(), "it is to be written anew");
        bed.pool.commit().unwrap();
        assert!(!bed.pool.is_dirty());
        bed.clock.advance(Duration::from_secs(31));
        bed.pool.shared.store.event(device());
        let counted = |class: &str, count| (class.to_owned(), count);
        let told = [counted("pool_create", 1), counted("io", 6), counted("io", 1), counted("io", 1)];
        assert_eq!(bed.classes(), told);
        // The last one is lost with the crash, and nothing else.
        let bed = bed.crash(2);
        assert_eq!(bed.classes()[..3], told[..3]);
        assert_eq!(bed.classes()[3..], [counted("pool_import", 1)]);
        let numbers: Vec<u64> = bed.pool.events(2).iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [3, 4]);
    }

    #[test]
    fn the_newest_events_are_kept_and_can_be_forgotten() {
        let bed = bed();
        let many = EVENTS_AT_MOST + 700;
        for i in 0..many {
            bed.pool.shared.store.event(Event::new(Class::StateChange).text(i.to_string()));
            if i % 400 == 0 {
                bed.pool.commit().unwrap();
            }
        }
        while bed.pool.log.is_dirty() {
            bed.pool.commit().unwrap();
        }
        let bed = bed.crash(2);
        let events = bed.pool.events(0);
        assert_eq!(events.len() as u64, EVENTS_AT_MOST);
        assert_eq!(events[events.len() - 2].1.text, (many - 1).to_string());
        assert!(events.is_sorted_by_key(|(number, _)| *number));
        bed.pool.clear_events();
        assert_eq!(bed.pool.events(0), []);
        bed.pool.shared.store.event(Event::new(Class::PoolFull));
        for _ in 0..20 {
            bed.pool.shared.store.event(Event::new(Class::PoolFull));
            bed.pool.commit().unwrap();
        }
        let bed = bed.crash(3);
        assert_eq!(bed.classes(), [("pool_full".to_owned(), 21), ("pool_import".to_owned(), 1)]);
    }

    #[test]
    fn of_the_commands_the_first_stays_with_the_newest() {
        let bed = bed();
        bed.pool.log_command("larder pool create tank x", 0, "root");
        for i in 0..COMMANDS_AT_MOST + 300 {
            bed.pool.log_command(&format!("command {i}"), 1000, "me");
        }
        while bed.pool.log.is_dirty() {
            bed.pool.commit().unwrap();
        }
        let bed = bed.crash(2);
        let commands = bed.pool.commands();
        assert_eq!(commands[0].text, "larder pool create tank x");
        assert_eq!((commands[0].host.as_str(), commands[0].user.as_str()), ("sim", "root"));
        let (last, kept) = (commands.last().unwrap(), commands.len() as u64);
        assert_eq!(last.text, format!("command {}", COMMANDS_AT_MOST + 299));
        assert!((COMMANDS_AT_MOST..=COMMANDS_AT_MOST + 1).contains(&kept), "{kept}");
    }
}
