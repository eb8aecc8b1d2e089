//! Power is cut while what a sector does not take goes elsewhere.

use crate::common::*;
use larder_format::ByteLen;
use larder_sim::{Fault, SimWorld, Survival};

/// Cuts the power at every `step`-th event of a life with a bad sector; how often.
pub fn run(word: &str, count: usize, sector: u64, step: usize) -> Result<usize, String> {
    let sim = SimWorld::new(&vec![ByteLen::new(64 << 20); count]);
    let pool = create(&sim, word);
    sim.device(0).inject(Fault::FailWrites(sector..sector + 512));
    let start = sim.trace().len();
    let mut model = Model::new();
    let mut promised = vec![model.clone()];
    sim.mark(0);
    for round in 1..4 {
        commit(&pool, &mut model, &files(10 * round, 6, round));
        promised.push(model.clone());
        sim.mark(promised.len() as u64 - 1);
        sync(&pool, &mut model, &files(10 * round, 2, round + 1));
        promised.push(model.clone());
        sim.mark(promised.len() as u64 - 1);
    }
    drop(pool);
    let trace = sim.trace();
    let mut cuts = 0;
    let mut sweep = trace.sweep();
    for cut in (start..=trace.len()).step_by(step) {
        sweep.advance_to(cut);
        cuts += 1;
        let survival = [Survival::DropAll, Survival::KeepAll, Survival::Random { seed: cut as u64 }][cut % 3];
        let case = format!("cut {cut} of {start}..{}, {survival:?}", trace.len());
        let after = SimWorld::from_images(sweep.images(survival));
        after.device(0).inject(Fault::FailWrites(sector..sector + 512));
        let pool = import(&after, 2).map_err(|error| format!("{case}: {error}"))?;
        replay(&pool);
        let found = contents(&pool).map_err(|error| format!("{case}: {error}"))?;
        let Some(mark) = trace.marks_before(cut).last() else { continue };
        let lost = promised[mark as usize]
            .iter()
            .find(|(inode, (version, _))| found.get(inode).is_none_or(|(found, _)| found < version));
        if lost.is_some() {
            return Err(format!("{case}: {lost:?} is lost"));
        }
        pool.commit().map_err(|error| format!("{case}: {error}"))?;
        let problems = pool.upkeep.check().map_err(|error| format!("{case}: {error}"))?.problems;
        if !problems.is_empty() {
            return Err(format!("{case}: {problems:#?}"));
        }
    }
    Ok(cuts)
}
