//! The torture simulation within tolerance: whatever happens to devices that the layout can do without, nothing that
//! was acknowledged is lost, and the pool repairs to clean.

use crate::bed::{Bed, Coverage};
use crate::shape::Shape;
use crate::structures::{Piece, Structure, structures};
use larder_format::{DeviceIndex, DeviceOffset};
use larder_pool::PoolError;
use larder_sim::Fault;

/// The pools that are tortured.
const SHAPES: [Shape; 10] = [
    Shape { word: "mirror", width: 2, groups: 1 },
    Shape { word: "mirror", width: 3, groups: 1 },
    Shape { word: "raidz1", width: 3, groups: 1 },
    Shape { word: "raidz1", width: 5, groups: 1 },
    Shape { word: "raidz2", width: 4, groups: 1 },
    Shape { word: "raidz2", width: 6, groups: 1 },
    Shape { word: "raidz3", width: 7, groups: 1 },
    Shape { word: "raid10", width: 4, groups: 1 },
    Shape { word: "raid14", width: 5, groups: 1 },
    Shape { word: "mirror", width: 2, groups: 2 },
];

const EVERYWHERE: std::ops::Range<u64> = 0..u64::MAX;

impl Bed {
    /// A device that may be harmed, by chance one that is harmed already.
    fn victim(&self) -> Option<DeviceIndex> {
        self.some_place(|seat| self.may_harm(seat))
    }

    /// Something bad happens to a device.
    fn harm(&mut self) {
        match self.victim() {
            Some(seat) => self.harm_seat(seat),
            None => self.count("no harm"),
        }
    }

    /// Something bad happens to this device.
    pub fn harm_seat(&mut self, seat: DeviceIndex) {
        let device = self.sim_of(seat);
        self.note_harm(seat);
        let (spare, strikes) = (self.next(20), 1 + self.next(12));
        let end = device.image().size().get();
        let place = |bed: &Self| bed.next(end / 4096) * 4096;
        let range = if self.next(2) == 0 { EVERYWHERE } else { place(self)..end };
        let kind = match self.next(15) {
            0 => {
                device.inject_window(Fault::Gone, spare, u64::MAX);
                "gone"
            }
            1 => {
                device.inject_window(Fault::FailReads(range), spare, strikes * 10);
                "read errors"
            }
            2 => {
                device.inject_window(Fault::FailWrites(range), spare, strikes);
                "write errors"
            }
            3 => {
                device.inject_window(Fault::FailFlushes, spare % 4, strikes);
                "flush errors"
            }
            4 => {
                device.inject_window(Fault::LoseWrites(range), spare, strikes);
                "lost writes"
            }
            5 => {
                let to = DeviceOffset::new(place(self));
                device.inject_window(Fault::MisdirectWrites { from: range, to }, spare, 1 + strikes % 3);
                "misdirected writes"
            }
            6 => {
                let seed = self.next(1 << 40);
                device.inject_window(Fault::TearWrites { range, seed }, spare, strikes);
                "torn writes"
            }
            7 => {
                device.inject_window(Fault::LieOnFlush, spare % 4, strikes);
                "lying flushes"
            }
            8 => {
                device.inject_window(Fault::StaleReads(range), spare, strikes * 10);
                "stale reads"
            }
            9 => {
                let past = &self.seats[&seat].past;
                if past.is_empty() {
                    return self.count("no harm");
                }
                device.swap_media(past[self.next(past.len() as u64) as usize].clone());
                "old data"
            }
            14 => {
                let strikes = if self.next(2) == 0 { strikes } else { u64::MAX };
                device.inject_window(Fault::Hang, spare, strikes);
                "hang"
            }
            10 if self.next(3) == 0 => {
                device.swap_media(larder_sim::DeviceImage::blank(device.image().size()));
                "blank"
            }
            _ => return self.rot(seat),
        };
        self.count(kind);
    }

    /// Bits flip in some structures of a device.
    fn rot(&mut self, seat: DeviceIndex) {
        let pool = self.pool();
        let pieces = structures(&pool, &self.sim);
        let mut mine: Vec<Piece> =
            pieces.into_iter().filter(|piece| piece.device == usize::from(seat.get())).collect();
        let what = Structure::ALL[self.next(Structure::ALL.len() as u64) as usize];
        if self.next(4) > 0 {
            mine.retain(|piece| piece.what == what);
        }
        let device = self.sim_of(seat);
        let some = 1 + self.next(4);
        let end = device.image().size().get();
        for piece in mine.into_iter().filter(|piece| piece.at.get() + piece.len as u64 <= end) {
            if self.next(some) == 0 {
                device.flip_bits(piece.at, piece.len, self.next(1 << 40));
                self.count(format!("rot in {:?}", piece.what));
            }
        }
    }

    /// A device stops misbehaving. What it did stays done, and what it was asked to do long ago may be done only now.
    fn calm(&mut self) {
        let seat = self.some_place(|_| true).expect("a pool has devices");
        if self.next(2) == 0 {
            self.sim_of(seat).resume();
        }
        self.sim_of(seat).clear_faults();
        self.count("calm");
    }

    /// Keeps the contents of a device, which may come back later.
    fn remember(&mut self) {
        let seat = self.some_place(|_| true).expect("a pool has devices");
        let image = self.sim_of(seat).image();
        self.seats.entry(seat).or_default().past.push(image);
    }

    /// The pool goes and comes back; devices may be away, cut short, or as they were long ago.
    fn export_and_import(&mut self) {
        self.commit();
        let victim = self.victim();
        self.export();
        for seat in self.places(|_| true) {
            self.sim_of(seat).clear_faults();
        }
        self.away.clear();
        match (self.next(4), victim) {
            (0, Some(seat)) => {
                self.note_harm(seat);
                self.away.insert(self.seats[&seat].device);
                self.count("away");
            }
            (1, Some(seat)) => {
                self.note_harm(seat);
                let device = self.sim_of(seat);
                let image = device.image();
                let size = larder_format::ByteLen::new(image.size().get() / 4096 / (2 + self.next(8)) * 4096);
                device.swap_media(image.resized(size));
                self.count("shrunk");
            }
            _ => {}
        }
        self.import().unwrap_or_else(|error| panic!("import: {error}"));
        assert!(self.pool().take_replay().is_empty(), "an export leaves nothing to replay");
        self.count("export and import");
    }

    /// A device is taken out of use.
    fn offline(&mut self) {
        let online = |seat| self.pool().store().members().get(seat).is_online();
        let needed = |seat| !self.survives(|other| other == seat || !online(other));
        if let Some(seat) = self.some_place(needed) {
            let refused = self.pool().upkeep.devices.offline(seat, true);
            assert!(matches!(refused, Err(PoolError::Refused(_))), "only it has a part: {refused:?}");
        }
        let Some(seat) = self.victim() else { return self.count("no harm") };
        let pool = self.pool();
        if pool.store().members().get(seat).is_online() {
            self.note_harm(seat);
            pool.upkeep.devices.offline(seat, self.next(2) == 0).unwrap();
            self.count("offline");
        }
    }

    fn step(&mut self) {
        let pool = self.pool();
        match self.next(62) {
            0..=9 => self.put(),
            10..=11 => self.remove(),
            12..=15 => self.sync(),
            16..=20 => self.commit(),
            21 => drop(pool.clean_step(true).unwrap()),
            22 => drop(pool.free_step(1).unwrap()),
            23 => {
                // It begins with a commit.
                if pool.upkeep.gc.start().unwrap() {
                    self.promise();
                }
            }
            24..=25 => drop(pool.upkeep.gc.step(2).unwrap()),
            26..=31 => self.harm(),
            32 => self.calm(),
            33..=34 => self.remember(),
            35..=36 => self.verify(),
            37 => self.export_and_import(),
            38 => self.heal(),
            39 => self.offline(),
            40 => {
                // Stripes that reads found wrong.
                self.verify();
                while pool.upkeep.read_repair.step().unwrap() > 0 {}
                self.count("reads heal");
            }
            41 => self.attach(),
            42..=43 => self.detach(),
            44 => self.add_group(),
            45 => self.replace_and_detach(),
            46..=47 => self.reshape_some(),
            48..=49 => self.trim(),
            50..=51 => self.widen(),
            52..=53 => self.shrink(),
            54 => self.change_layout(),
            55 => self.remove_group(),
            56..=57 => self.rebalance(),
            58..=59 => self.expand(),
            _ => {
                let since = self.sim.trace().len();
                for _ in 0..self.next(4) {
                    match self.next(4) {
                        0 => self.sync(),
                        1 => self.commit(),
                        _ => self.put(),
                    }
                }
                self.cut(since);
                self.count("power cut");
            }
        }
    }
}

/// Tortures one pool by seed.
pub fn run(seed: u64, coverage: &mut Coverage) {
    let shape = SHAPES[seed as usize % SHAPES.len()];
    let mut bed = Bed::new(shape, seed);
    let steps = 30 + seed as usize % 7 * 10;
    for _ in 0..steps {
        bed.step();
    }
    bed.verify();
    bed.heal();
    std::mem::take(&mut bed.coverage)
        .into_iter()
        .for_each(|(what, times)| *coverage.entry(what).or_default() += times);
}
