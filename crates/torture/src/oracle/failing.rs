//! Openings during which the device fails to read: one read, some in a row, or one block, for a moment or for good. And whoever
//! looks at what was recovered while reads fail: he sees what is there, or an error.
//!
//! What an opening reads, and where the log ends, is found out on a copy. Then one of these reads fails. Either the opening finds the
//! same, or it fails and says why; once the device is sound again the pool opens as if nothing had been. What the opening that failed
//! had written by then is part of the image, and the power may fail before the next one.

use std::sync::Arc;

use varve_fs::{FsError, InodeId, ROOT_INODE};
use varve_sim::{CrashPolicy, Rng};

use super::{Expected, Recovered, recover_plainly, state_seen, verified, wrote_nothing};
use crate::compare::Sight;
use crate::disk::{Cut, Disk};
use crate::model::{Model, numbered};
use crate::reads::{Plan, Reads, TEXT};
use crate::session::{Opened, Setup, StepClock, Violation};
use crate::violation;

/// How many openings for writing fail to read something.
pub(super) const OPENINGS: f64 = 0.1;
/// After how many of the others somebody looks while reads fail.
pub(super) const LOOKS: f64 = 0.05;
/// In how many lives after a recovery reads fail during the calls.
pub(super) const CALLS: f64 = 0.15;
/// During how many of these.
pub(super) const CALL: f64 = 0.5;
/// Pieces of a file, and changes between two subvolumes, that are looked at.
const PAGE: usize = 100;

/// An error is the device's, or tells of it.
fn tells(error: &FsError, failed: u64) -> Result<(), Violation> {
    if failed > 0 && error.errno() == 5 && error.to_string().contains(TEXT) {
        return Ok(());
    }
    Err(violation!(
        "the image does not open after {failed} failed reads, and the error is not theirs: {error}"
    ))
}

/// Recovers what is on `disk` while something cannot be read.
pub(super) fn recover(
    disk: Disk,
    expected: &Expected<'_>,
    setup: &Setup,
    rng: &mut Rng,
) -> Result<Recovered, Violation> {
    let clock = StepClock::new(1 << 32);
    let whole = Reads::noted(disk.fork().device());
    let opened = Opened::open_on(Arc::new(whole.clone()), setup, &clock, false)
        .map_err(|error| violation!("the image does not open: {error}"))?;
    let end = opened.report.end.0;
    drop(opened);
    let plan = Plan::seeded(&whole.read(), rng);
    let during = |Violation(what)| violation!("opening, {plan} fail: {what}");
    let device = Reads::new(disk.device());
    let begun = disk.events();
    device.fail(plan.clone());
    let opened = Opened::open_on(Arc::new(device.clone()), setup, &clock, false);
    let failed = device.heal();
    let error = match opened {
        Ok(opened) => {
            let recovered = verified(opened, disk, clock, expected).map_err(during)?;
            return ends_at(end, recovered).map_err(during);
        }
        Err(error) => error,
    };
    tells(&error, failed).map_err(during)?;
    // It may have made that end durable, and have logged what every opening does then.
    let mut expected = expected.clone();
    if (expected.least..=expected.most).contains(&end) {
        expected.recovered.extend(expected.timeline.at(end).iter().map(|model| (end, model)));
    }
    let after = |Violation(what)| violation!("after an opening that failed ({plan} failed: {error}): {what}");
    if rng.chance(0.5) {
        let events = rng.between(begun as u64, disk.events() as u64) as usize;
        let cut = Cut { events, policy: CrashPolicy::Seeded, tear_within: rng.chance(0.25) };
        return recover_plainly(disk.cut(&cut, rng), &expected, setup).map_err(after);
    }
    recover_plainly(disk, &expected, setup).and_then(|recovered| ends_at(end, recovered)).map_err(after)
}

/// Also of what was not promised nothing is cut because it cannot be read.
fn ends_at(end: u64, recovered: Recovered) -> Result<Recovered, Violation> {
    match recovered.opened.report.end.0 {
        found if found < end => Err(violation!("recovered to {found}, and to {end} where nothing fails")),
        _ => Ok(recovered),
    }
}

/// Opens `image` for reading while something of what is `read` then cannot be. Where nothing fails its log ends at `end`.
pub(super) fn read_only(
    image: &Disk,
    end: u64,
    read: &[(u64, u64)],
    expected: &Expected<'_>,
    setup: &Setup,
    rng: &mut Rng,
) -> Result<(), Violation> {
    let disk = image.fork();
    let plan = Plan::seeded(read, rng);
    let during = |Violation(what)| violation!("opened for reading, {plan} fail: {what}");
    let device = Reads::new(disk.device());
    device.fail(plan.clone());
    let opened = Opened::open_on(Arc::new(device.clone()), setup, &StepClock::new(1 << 32), true);
    let failed = device.heal();
    match opened {
        Err(error) => tells(&error, failed).map_err(during)?,
        Ok(opened) => {
            let found = opened.report.end.0;
            // Who only reads is served what can be had, and told if the log goes on.
            let (expected, sight) = match &opened.report.replay_ended_by {
                Some(why) if why.contains(TEXT) && found <= end => {
                    let expected = Expected { least: 0, ..expected.clone() };
                    (expected, Sight::InPart)
                }
                Some(why) => {
                    return Err(during(violation!(
                        "the log ends at {found}, without at {end}, because {why}"
                    )));
                }
                None if found != end => {
                    return Err(during(violation!(
                        "the log ends at {found}, and at {end} where nothing fails"
                    )));
                }
                None if plan.is_row() => (expected.clone(), Sight::InPart),
                None => (expected.clone(), Sight::Whole),
            };
            if !expected.timeline.at(found).is_empty() {
                state_seen(&opened, &expected, sight, &|| {}).map_err(during)?;
            }
        }
    }
    wrote_nothing(&disk).map_err(during)
}

/// Recovers what is on `disk`, of which nothing is in memory, and has a look at it while reads fail; then as [`recover_plainly`].
pub(super) fn look(
    disk: Disk,
    expected: &Expected<'_>,
    setup: &Setup,
    rng: &mut Rng,
) -> Result<Recovered, Violation> {
    let clock = StepClock::new(1 << 32);
    let device = Reads::new(disk.device());
    let opened = Opened::open_on(Arc::new(device.clone()), setup, &clock, false)
        .map_err(|error| violation!("the image does not open: {error}"))?;
    let plan = Plan::again_and_again(rng);
    let during = |Violation(what)| violation!("while {plan} fail: {what}");
    let fail = || device.fail(plan.clone());
    // Sometimes that is the first to look at all.
    let asks_first = rng.chance(0.3);
    let mut answers = Vec::new();
    let state = match asks_first {
        true => None,
        false => Some(state_seen(&opened, expected, Sight::InPart, &fail).map_err(during)?),
    };
    let state = state.as_ref().or(expected.timeline.at(opened.report.end.0).first());
    if let Some(state) = state {
        fail();
        answers = ask(&opened, state);
        // What it says of what it cannot read is another's business.
        match rng.below(4) {
            0 => opened.fs.check(true).map(drop),
            1 => opened.fs.statfs().map(drop),
            _ => Ok(()),
        }
        .or_else(|error| tells(&error, 1))
        .map_err(during)?;
    }
    device.heal();
    if let Some(state) = state {
        for ((found, whole), question) in answers.into_iter().zip(ask(&opened, state)).zip(0..) {
            match (found, whole) {
                // Nothing stays of it when the device is sound again.
                (Err(error), Ok(_)) if error.errno() == 5 => {}
                (Ok(found), Ok(whole)) if found == whole => {}
                (Err(error), Err(whole))
                    if whole.errno() != 5 && [5, whole.errno()].contains(&error.errno()) => {}
                differ => {
                    return Err(during(violation!(
                        "question {question} is answered and then answered so: {differ:?}"
                    )));
                }
            }
        }
    }
    verified(opened, disk, clock, expected)
}

/// Where the data of files lies, and what differs between subvolumes.
fn ask(opened: &Opened, state: &Model) -> Vec<Result<String, FsError>> {
    let files = state.inodes().filter(|(_, inode)| inode.content().is_some());
    let maps = files.map(|(ino, _)| opened.fs.map(ino, 0, PAGE).map(|map| format!("{map:?}")));
    let roots: Vec<InodeId> = state.subvolumes().map(|(slot, _)| numbered(slot, ROOT_INODE)).collect();
    let pairs = roots.windows(2).map(|pair| (pair[0], pair[1]));
    let diffs = pairs.map(|(old, new)| opened.fs.diff(old, new, &[], PAGE).map(|page| format!("{page:?}")));
    maps.chain(diffs).collect()
}

/// The process is killed when it has recovered and opens the pool again, so that nothing is in memory. Also gives the device.
pub(super) fn reopen(recovered: Recovered, setup: &Setup) -> Result<(Recovered, Reads), Violation> {
    let Recovered { opened, disk, clock, model } = recovered;
    let end = opened.report.end;
    drop(opened);
    let device = Reads::new(disk.device());
    let opened = Opened::open_on(Arc::new(device.clone()), setup, &clock, false)
        .map_err(|error| violation!("what was recovered does not open again: {error}"))?;
    if opened.report.end < end {
        return Err(violation!("recovered to {}, and then to {}", end.0, opened.report.end.0));
    }
    Ok((Recovered { opened, disk, clock, model }, device))
}
