//! Runs any test of the filesystem as a crash test.
//!
//! The test is a function that makes calls through a [`Session`] on a fresh pool; each call is compared with the model
//! as it is made. Then the power fails: at every flush if the test is small, at seeded instants if it is large.

use varve_fs::Profile;
use varve_sim::{CrashPolicy, Rng};

use crate::disk::{Cut, Disk};
use crate::oracle::{Depth, judge};
use crate::session::{Opened, Session, Setup, StepClock, Violation};
use crate::trial::{POOL_BYTES, format};

/// Flush boundaries up to which every one is cut.
const BOUNDARIES_MAX: usize = 24;

/// Runs `test` on a fresh 64 MiB pool, then crashes it. Gives the number of crashes; panics, naming the test and the
/// crash, when a promise is broken.
pub fn crash_test(name: &str, setup: Setup, test: impl FnOnce(&mut Session) -> Result<(), Violation>) -> u64 {
    match run(setup, test) {
        Ok(crashes) => crashes,
        Err(Violation(what)) => panic!("crash test {name}: {what}"),
    }
}

fn run(setup: Setup, test: impl FnOnce(&mut Session) -> Result<(), Violation>) -> Result<u64, Violation> {
    let disk = Disk::new(POOL_BYTES);
    let model = format(&disk, Profile::Single)?;
    let disk = disk.fork();
    let clock = StepClock::new(1_000_000_001);
    let opened =
        Opened::open(&disk, &setup, &clock, false).map_err(|e| Violation(format!("open fails: {e}")))?;
    let mut session = Session::new(opened, disk, clock, setup, model);
    test(&mut session)
        .and_then(|()| session.verify())
        .map_err(|Violation(what)| Violation(format!("while running: {what}\n{}", session.history(60))))?;
    let history = session.history(60);
    let (timeline, disk, _) = session.end();
    let boundaries = disk.flush_boundaries();
    let mut rng = Rng::new(boundaries.len() as u64);
    let mut cuts: Vec<Cut> = Vec::new();
    if boundaries.len() <= BOUNDARIES_MAX {
        for events in boundaries.into_iter().chain([disk.events()]).filter(|at| *at >= timeline.first_event())
        {
            let policies =
                [CrashPolicy::DropAll, CrashPolicy::KeepAll, CrashPolicy::Seeded, CrashPolicy::Seeded];
            cuts.extend(policies.map(|policy| Cut { events, policy, tear_within: false }));
            cuts.push(Cut { events, policy: CrashPolicy::KeepAll, tear_within: true });
        }
    } else {
        cuts.extend((0..4 * BOUNDARIES_MAX).map(|_| Cut::seeded(&disk, timeline.first_event(), &mut rng)));
        cuts.sort_by_key(|cut| cut.events);
    }
    let mut crashes = 0;
    for (number, cut) in cuts.iter().enumerate() {
        let mut rng = rng.fork(&format!("crash {number}"));
        let depth = Depth { calls_after: 4, crashes_after: 1, read_only_too: number.is_multiple_of(8) };
        crashes += judge(&timeline, &disk, cut, &setup, &depth, &mut rng)
            .map_err(|Violation(what)| Violation(format!("crash {number} at {cut}: {what}\n{history}")))?;
    }
    Ok(crashes)
}
