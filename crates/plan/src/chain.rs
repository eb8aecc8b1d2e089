//! The chance that a group loses data, by a Markov chain over which of its devices are lost.
//!
//! Devices of a group are alike, so that it is enough to know how many replicas each data column has lost, and how many
//! parity columns are gone; what is survived is what [`Layout::survives`] says, as at an import. Devices fail at a
//! constant rate and are rebuilt at a constant rate: the chain of Gibson, "Redundant Disk Arrays" (1992), and of Chen,
//! Lee, Gibson, Katz and Patterson, "RAID: High-Performance, Reliable Secondary Storage" (1994), for any layout.
//!
//! Two things are asked. *The group is lost* when more devices are than its layout survives. *Some block is lost* also
//! when a bad sector is met where nothing else has its content: on a device whose loss would be fatal, while everything
//! is read to rebuild others. Each time that a device fails, such devices are read whole once.

use larder_format::segment::Layout;
use std::collections::HashMap;

/// More devices than these lost together count as the end, which is almost always true: bounds the chain.
const MOST_LOST: usize = 8;
/// Steps of one transition each that a year is followed in. Of more, a year is long beside any rebuild, and the chance
/// follows from the mean time.
const MOST_STEPS: f64 = 100_000.0;

/// Rates of a group's devices; times are years.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Failures of one device a year.
    pub failures: f64,
    /// Factor by which the others fail more often for each device that is lost; 1 when they have nothing in common.
    pub correlation: f64,
    /// Mean time from a failure to the end of its rebuild.
    pub rebuild: f64,
    /// Several lost devices are rebuilt at the same time, not one after the other.
    pub together: bool,
    /// Bad sectors that are met when what one device holds is read once.
    pub bad_sectors: f64,
    /// Times a year that everything is read, by scrubs.
    pub scrubs: f64,
}

/// Chances of a loss within a year.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chances {
    /// More devices are lost than the layout survives.
    pub group: f64,
    /// That, or a block that cannot be read.
    pub block: f64,
    /// Mean years until the group is lost.
    pub years_to_group: f64,
    /// Mean years until a block is.
    pub years_to_block: f64,
}

/// Lost replicas of each data column, most first, and lost parity columns.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    units: Vec<u8>,
    parity: u8,
}

impl State {
    fn whole(layout: Layout) -> Self {
        Self { units: vec![0; layout.k()], parity: 0 }
    }

    fn lost(&self) -> usize {
        self.units.iter().map(|&lost| usize::from(lost)).sum::<usize>() + usize::from(self.parity)
    }

    fn survives(&self, layout: Layout) -> bool {
        let replicas = layout.k() * layout.r();
        layout.survives(|column| match column < replicas {
            true => column % layout.r() < usize::from(self.units[column / layout.r()]),
            false => column - replicas < usize::from(self.parity),
        })
    }

    /// With another number of lost replicas of one column that has lost `from`.
    fn with_unit(&self, from: u8, to: u8) -> Self {
        let mut units = self.units.clone();
        let at = units.iter().position(|&lost| lost == from).expect("there is one");
        units[at] = to;
        units.sort_unstable_by(|a, b| b.cmp(a));
        Self { units, parity: self.parity }
    }

    /// States with one device more lost, with the number of devices whose loss leads there.
    fn worse(&self, layout: Layout) -> Vec<(Self, usize)> {
        let mut next = Vec::new();
        let mut units = self.units.clone();
        units.dedup();
        for lost in units.into_iter().filter(|&lost| usize::from(lost) < layout.r()) {
            let alike = self.units.iter().filter(|&&other| other == lost).count();
            next.push((self.with_unit(lost, lost + 1), alike * (layout.r() - usize::from(lost))));
        }
        let parity = layout.m() - usize::from(self.parity);
        if parity > 0 {
            next.push((Self { parity: self.parity + 1, ..self.clone() }, parity));
        }
        next
    }

    /// States with one device rebuilt, with the number of devices whose rebuild leads there.
    fn better(&self) -> Vec<(Self, usize)> {
        let mut next = Vec::new();
        let mut units = self.units.clone();
        units.dedup();
        for lost in units.into_iter().filter(|&lost| lost > 0) {
            let alike = self.units.iter().filter(|&&other| other == lost).count();
            next.push((self.with_unit(lost, lost - 1), alike * usize::from(lost)));
        }
        if self.parity > 0 {
            next.push((Self { parity: self.parity - 1, ..self.clone() }, usize::from(self.parity)));
        }
        next
    }
}

/// Rates from state to state, and from each to the end. The first state is that without any loss.
struct Chain {
    moves: Vec<Vec<(usize, f64)>>,
    end: Vec<f64>,
}

impl Chain {
    /// `blocks`: bad sectors are an end, too.
    fn new(layout: Layout, rates: &Rates, blocks: bool) -> Self {
        let mut states = vec![State::whole(layout)];
        let mut known: HashMap<State, usize> = states.iter().cloned().zip([0]).collect();
        let mut chain = Self { moves: Vec::new(), end: Vec::new() };
        let is_end = |state: &State| state.lost() > MOST_LOST || !state.survives(layout);
        // Devices of a state whose loss would be fatal: what they hold is nowhere else.
        let critical = |state: &State| -> usize {
            state
                .worse(layout)
                .iter()
                .filter(|(next, _)| !next.survives(layout))
                .map(|(_, count)| count)
                .sum()
        };
        let met = |state: &State| match blocks {
            true => -(-(critical(state) as f64) * rates.bad_sectors).exp_m1(),
            false => 0.0,
        };
        let mut at = 0;
        while at < states.len() {
            let state = states[at].clone();
            let (mut moves, mut end) = (Vec::new(), 0.0);
            let lost = state.lost();
            let fails = rates.failures * rates.correlation.powi(lost as i32);
            if at == 0 && blocks {
                end += critical(&state) as f64 * rates.bad_sectors * rates.scrubs;
            }
            let mut index = |state: State| {
                *known.entry(state.clone()).or_insert_with(|| {
                    states.push(state);
                    states.len() - 1
                })
            };
            for (next, count) in state.worse(layout) {
                let rate = fails * count as f64;
                if is_end(&next) {
                    end += rate;
                    continue;
                }
                let bad = met(&next);
                end += rate * bad;
                moves.push((index(next), rate * (1.0 - bad)));
            }
            for (next, count) in state.better() {
                let share = if rates.together { count as f64 } else { count as f64 / lost as f64 };
                moves.push((index(next), share / rates.rebuild));
            }
            chain.moves.push(moves);
            chain.end.push(end);
            at += 1;
        }
        chain
    }

    /// Mean time from the first state to the end. States are eliminated one by one, without a subtraction: what is rare
    /// stays exact (Grassmann, Taksar and Heyman, 1985).
    fn mean(&self) -> f64 {
        let count = self.end.len();
        let mut rate = vec![vec![0.0; count + 1]; count];
        for (from, moves) in self.moves.iter().enumerate() {
            moves.iter().for_each(|&(to, by)| rate[from][to] += by);
            rate[from][count] = self.end[from];
        }
        let mut time = vec![1.0; count];
        for gone in (1..count).rev() {
            let leaving: f64 =
                (0..=count).filter(|&to| to < gone || to == count).map(|to| rate[gone][to]).sum();
            for from in 0..gone {
                let share = rate[from][gone] / leaving;
                if share == 0.0 {
                    continue;
                }
                time[from] += share * time[gone];
                for to in (0..gone).chain([count]).filter(|&to| to != from) {
                    rate[from][to] += share * rate[gone][to];
                }
            }
        }
        time[0] / rate[0][count]
    }

    /// The chance that the end comes within a year, by uniformization: so many steps of a discrete chain as a Poisson
    /// process has in that time.
    fn within_a_year(&self) -> f64 {
        let leaving = |at: usize| self.end[at] + self.moves[at].iter().map(|(_, rate)| rate).sum::<f64>();
        let fastest = (0..self.end.len()).map(leaving).fold(0.0, f64::max);
        let last = fastest + 10.0 * fastest.sqrt() + 20.0;
        if fastest == 0.0 {
            return 0.0;
        }
        if last > MOST_STEPS {
            return -(-1.0 / self.mean()).exp_m1();
        }
        let mut here = vec![0.0; self.end.len()];
        here[0] = 1.0;
        let (mut ended, mut sum, mut weight) = (0.0, 0.0, -fastest);
        for step in 0..last as u64 {
            sum += weight.exp() * ended;
            weight += fastest.ln() - ((step + 1) as f64).ln();
            let mut next: Vec<f64> =
                here.iter().enumerate().map(|(at, part)| part * (1.0 - leaving(at) / fastest)).collect();
            for (at, part) in here.iter().enumerate() {
                ended += part * self.end[at] / fastest;
                self.moves[at].iter().for_each(|&(to, rate)| next[to] += part * rate / fastest);
            }
            here = next;
        }
        sum
    }
}

/// Chances of a group of this layout.
pub fn chances(layout: Layout, rates: &Rates) -> Chances {
    let [group, block] = [false, true].map(|blocks| Chain::new(layout, rates, blocks));
    Chances {
        group: group.within_a_year(),
        block: block.within_a_year(),
        years_to_group: group.mean(),
        years_to_block: block.mean(),
    }
}
