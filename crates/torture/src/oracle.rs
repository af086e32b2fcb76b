//! Judges a crash image: promise 1, and that the filesystem is whole and usable afterwards.
//!
//! 1. The image opens. Recovery ends at E, no earlier than what had been promised, no later than what was written.
//! 2. The recovered tree is exactly the expected state at E; the checker, with all data verified, finds nothing.
//! 3. Opening read-only instead shows the same and writes nothing.
//! 4. Work goes on, and is made durable.
//! 5. A crash during that recovery, or during the work after it, is judged in the same way. Once the first recovery has
//!    served, later ones start from its E: what it cut never comes back.
//! 6. Some openings fail to read something ([`failing`]): they find the same or fail, and have taken nothing with them. After others
//!    whoever looks, or makes the calls of step 4, meets reads that fail.
//!
//! The same holds when the process is killed and the machine goes on: then what the first recovery reads is still in doubt.

mod failing;

use std::collections::BTreeMap;
use std::sync::Arc;

use varve_fs::{Caller, FsError, InodeId};
use varve_sim::{CrashPolicy, Rng};

use crate::call::Call;
use crate::compare::{Differences, Sight, compare_after};
use crate::disk::{Cut, Disk};
use crate::model::{Model, is_subvolume, local, numbered, slot};
use crate::reads::Reads;
use crate::session::{Opened, Session, Setup, StepClock, Violation};
use crate::timeline::Timeline;
use crate::violation;
use crate::workload::random::{Character, Generator};

/// So often the background looks around until it has done what reads that failed have put off, perhaps several times.
pub(crate) const LOOKS_MAX: u32 = 1_000;

/// How much is done about one crash.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Calls made after the recovery.
    pub calls_after: u64,
    /// Crashes during the recovery and the calls after it.
    pub crashes_after: u64,
    /// Whether the image is also opened read-only.
    pub read_only_too: bool,
}

/// What the expectations are at a crash.
#[derive(Clone)]
struct Expected<'a> {
    timeline: &'a Timeline,
    least: u64,
    most: u64,
    /// A crash during a recovery, or the failure of one, that had found its end there: that state is right from there on, too.
    recovered: Vec<(u64, &'a Model)>,
}

/// A recovered filesystem that has passed steps 1 and 2.
struct Recovered {
    opened: Opened,
    disk: Disk,
    clock: Arc<StepClock>,
    model: Model,
}

/// Judges the image that `disk` leaves at `cut`. Gives the number of crashes simulated.
pub fn judge(
    timeline: &Timeline,
    disk: &Disk,
    cut: &Cut,
    setup: &Setup,
    depth: &Depth,
    rng: &mut Rng,
) -> Result<u64, Violation> {
    let (least, most) = timeline.bounds(cut.events);
    let expected = Expected { timeline, least, most, recovered: Vec::new() };
    let image = disk.cut(cut, rng);
    if depth.read_only_too {
        read_only(&image, &expected, setup, &mut rng.fork("reads, for reading"))?;
    }
    let recovered = recover(image, &expected, setup, &mut rng.fork("reads"))?;
    go_on(recovered, &expected, 0, setup, depth, rng)
}

/// Judges what is left when the process is killed after `events` events, the pool is opened again and used, and the power fails
/// during the opening or afterwards. Gives the number of crashes simulated.
pub fn judge_kill(
    timeline: &Timeline,
    disk: &Disk,
    events: usize,
    setup: &Setup,
    rng: &mut Rng,
) -> Result<u64, Violation> {
    let (least, most) = timeline.bounds(events);
    let disk = disk.killed(events, rng);
    let begun = disk.events();
    let expected = Expected { timeline, least, most, recovered: Vec::new() };
    let recovered = recover(disk, &expected, setup, &mut rng.fork("reads"))?;
    let depth = Depth { calls_after: 12, crashes_after: 6, read_only_too: false };
    go_on(recovered, &expected, begun, setup, &depth, rng)
}

/// Steps 4 and 5, after a recovery that began at event `begun` of its disk and had to find what was `before`. Gives the number of
/// crashes simulated, the one before it included.
fn go_on(
    recovered: Recovered,
    before: &Expected<'_>,
    begun: usize,
    setup: &Setup,
    depth: &Depth,
    rng: &mut Rng,
) -> Result<u64, Violation> {
    // What was cut must stay cut: look harder.
    let was_cut = recovered.opened.report.batches_cut > 0;
    let calls_after = if was_cut { depth.calls_after.max(6) } else { depth.calls_after };
    let crashes_after = if was_cut { depth.crashes_after.max(4) } else { depth.crashes_after };
    if calls_after == 0 && crashes_after == 0 {
        return Ok(1);
    }
    let end = recovered.opened.report.end.0;
    let mut unread = None;
    let mut recovered = recovered;
    let mut reads = rng.fork("reads, calls");
    if calls_after > 0 && reads.chance(failing::CALLS) {
        let device;
        (recovered, device) = failing::reopen(recovered, setup)?;
        unread = Some(device);
    }
    let Recovered { opened, disk, clock, model } = recovered;
    let served = disk.events();
    let mut session = Session::new(opened, disk, clock, *setup, model.clone());
    if let Some(device) = unread {
        session.fail_reads(device, reads, failing::CALL);
    }
    let mut trims = rng.fork("trims");
    if trims.chance(0.1) {
        // What the log frees is free, and the durable checkpoint refers to it.
        session.trim_between(trims, 0.3);
    }
    let mut worked = Ok(());
    if was_cut || rng.chance(0.5) {
        // The same data may find the same blocks: a batch that was cut would verify now, if it could still count.
        worked = repeat(&mut session, before.timeline.undone(end), calls_after);
    }
    let repeated = session.disk().events();
    worked
        .and_then(|()| work(&mut session, calls_after, rng))
        .map_err(|Violation(what)| violation!("after recovery to {end}: {what}\n{}", session.history(40)))?;
    let history = session.history(40);
    let (second, disk, _) = session.end();
    let mut cuts: Vec<Cut> = Vec::new();
    if begun > 0 {
        // On a disk whose writes before it are still in doubt the opening itself is what is dangerous.
        let boundaries = disk.flush_boundaries();
        let opening = boundaries.iter().filter(|instant| (begun..served).contains(instant));
        // With nothing flushed since, unless the opening has done it.
        let first = boundaries.iter().find(|instant| **instant >= served);
        for events in opening.chain([&served]).chain(first).copied() {
            let policies = [CrashPolicy::DropAll, CrashPolicy::Seeded, CrashPolicy::Seeded];
            cuts.extend(policies.map(|policy| Cut { events, policy, tear_within: false }));
        }
    }
    let mut crashes = 1;
    for number in 0..cuts.len() as u64 + crashes_after {
        let cut = cuts.get(number as usize).copied().unwrap_or_else(|| {
            let mut cut = Cut::seeded(&disk, begun, rng);
            if was_cut && rng.chance(0.5) {
                cut.events = rng.between(served as u64, repeated as u64) as usize;
            }
            cut
        });
        let expected = if cut.events < served {
            Expected { recovered: vec![(end, &model)], ..before.clone() }
        } else {
            let (least, most) = second.bounds(cut.events);
            Expected { timeline: &second, least, most, recovered: Vec::new() }
        };
        let during = if cut.events < served { "during" } else { "after" };
        let mut reads = rng.fork(&format!("reads {number}"));
        recover(disk.cut(&cut, rng), &expected, setup, &mut reads).map_err(|Violation(what)| {
            violation!(
                "second crash ({cut}) {during} the recovery to {end} (served at event {served}): {what}\n\
                 calls after the recovery:\n{history}"
            )
        })?;
        crashes += 1;
    }
    Ok(crashes)
}

/// Steps 1 and 2, and now and then step 6 in front of them.
fn recover(
    disk: Disk,
    expected: &Expected<'_>,
    setup: &Setup,
    reads: &mut Rng,
) -> Result<Recovered, Violation> {
    if reads.chance(failing::OPENINGS) {
        return failing::recover(disk, expected, setup, reads);
    }
    if reads.chance(failing::LOOKS) {
        return failing::look(disk, expected, setup, reads);
    }
    recover_plainly(disk, expected, setup)
}

fn recover_plainly(disk: Disk, expected: &Expected<'_>, setup: &Setup) -> Result<Recovered, Violation> {
    let clock = StepClock::new(1 << 32);
    let opened = Opened::open(&disk, setup, &clock, false)
        .map_err(|error| violation!("the image does not open: {error}"))?;
    verified(opened, disk, clock, expected)
}

fn verified(
    opened: Opened,
    disk: Disk,
    clock: Arc<StepClock>,
    expected: &Expected<'_>,
) -> Result<Recovered, Violation> {
    let model = state_at(&opened, expected)?;
    let report = opened.fs.check(true).map_err(|error| violation!("check after recovery fails: {error}"))?;
    if !report.problems.is_empty() {
        let end = opened.report.end.0;
        return Err(violation!("after recovery to {end} check finds:\n  {}", report.describe()));
    }
    // Inodes are counted in the background after a crash. What could not be read when it was to be reaped is tried again, not at once.
    for _ in 0..LOOKS_MAX {
        opened.fs.maintain().map_err(|error| violation!("maintain after recovery fails: {error}"))?;
        if opened.fs.reap_backlog() == 0 {
            break;
        }
    }
    let statfs = opened.fs.statfs().map_err(|error| violation!("statfs after recovery fails: {error}"))?;
    let (least, most) = model.named_count();
    if statfs.files < least || statfs.files > most {
        return Err(violation!("statfs counts {} inodes, expected {least} to {most}", statfs.files));
    }
    if statfs.free_bytes > statfs.total_bytes {
        return Err(violation!("statfs offers {} of {} bytes", statfs.free_bytes, statfs.total_bytes));
    }
    Ok(Recovered { opened, disk, clock, model })
}

/// Steps 1 and 2: the recovered position and tree are right. Gives the state found.
fn state_at(opened: &Opened, expected: &Expected<'_>) -> Result<Model, Violation> {
    state_seen(opened, expected, Sight::Whole, &|| {})
}

fn state_seen(
    opened: &Opened,
    expected: &Expected<'_>,
    sight: Sight,
    then: &dyn Fn(),
) -> Result<Model, Violation> {
    let report = &opened.report;
    let end = report.end.0;
    if end < expected.least {
        return Err(violation!(
            "recovered to {end}, but {} had been promised ({} batches replayed, {} cut)",
            expected.least,
            report.batches_replayed,
            report.batches_cut
        ));
    }
    let mut first: Option<Differences> = None;
    let recovered = expected.recovered.iter().filter(|(from, _)| end >= *from);
    let mut candidates: Vec<&Model> = recovered.map(|(_, model)| *model).collect();
    if end <= expected.most {
        candidates.extend(expected.timeline.at(end));
    }
    if candidates.is_empty() {
        return Err(violation!("recovered to {end}, but nothing beyond {} had been written", expected.most));
    }
    for candidate in candidates {
        let mut model = candidate.clone();
        model.forget_opens();
        match compare_after(&opened.fs, &model, sight, then) {
            Ok(settled) => return Ok(settled),
            Err(differences) => first = first.or(Some(differences)),
        }
    }
    let differences = first.expect("there was a candidate");
    Err(violation!("recovered to {end} (promised {}) and the tree differs:\n{differences}", expected.least))
}

/// Step 3, and step 6 for who only reads.
fn read_only(image: &Disk, expected: &Expected<'_>, setup: &Setup, reads: &mut Rng) -> Result<(), Violation> {
    let disk = image.fork();
    let clock = StepClock::new(1 << 32);
    let device = Reads::noted(disk.device());
    let opened = Opened::open_on(Arc::new(device.clone()), setup, &clock, true)
        .map_err(|error| violation!("the image does not open read-only: {error}"))?;
    let read = device.read();
    state_at(&opened, expected).map_err(|Violation(what)| violation!("opened read-only: {what}"))?;
    let refused =
        opened.fs.mkdir(Caller::ROOT, varve_fs::ROOT_INODE, b"no", 0o755).err().map(|e: FsError| e.errno());
    if refused != Some(30) {
        return Err(violation!("mkdir on a read-only filesystem gives errno {refused:?}, expected 30"));
    }
    let end = opened.report.end.0;
    drop(opened);
    wrote_nothing(&disk)?;
    failing::read_only(image, end, &read, expected, setup, reads)
}

fn wrote_nothing(disk: &Disk) -> Result<(), Violation> {
    match disk.events() {
        0 => Ok(()),
        events => Err(violation!("opening read-only wrote to the device ({events} events)")),
    }
}

/// Step 4, first: what the crash undid is done again, on the inodes that take the place of those that are gone.
fn repeat<'a>(
    session: &mut Session,
    undone: impl Iterator<Item = (&'a Call, InodeId)>,
    calls: u64,
) -> Result<(), Violation> {
    let mut numbers: BTreeMap<InodeId, InodeId> = BTreeMap::new();
    let mut slots: BTreeMap<u64, u64> = BTreeMap::new();
    for (call, created) in undone.take(2 * calls as usize) {
        // Handles died with the crash.
        if matches!(call, Call::Release { .. } | Call::Open { .. } | Call::Close) {
            continue;
        }
        let now = |ino: InodeId| {
            let slot = slots.get(&slot(ino)).copied().unwrap_or(slot(ino));
            numbered(slot, numbers.get(&local(ino)).copied().unwrap_or(local(ino)))
        };
        let call = call.map(now);
        // Nor is anything repeated in a snapshot that the crash has taken away.
        if call.inodes().iter().any(|(ino, _)| !session.live().has_slot(slot(*ino))) {
            continue;
        }
        session.call(&call)?;
        if let Some(ino) = session.last_created().filter(|_| created.0 != 0) {
            if is_subvolume(created) {
                slots.insert(slot(created), slot(ino));
            } else {
                numbers.insert(local(created), local(ino));
            }
        }
    }
    session.must(&Call::Sync)
}

/// Step 4: some calls, a sync, some more.
fn work(session: &mut Session, calls: u64, rng: &mut Rng) -> Result<(), Violation> {
    let character = Character {
        calls,
        write_bytes_max: 20_000,
        fsync: 100,
        sync: 30,
        flush_file: 10,
        checkpoint: 30,
        maintain: 30,
        // Where there are forks there are more.
        forks: if session.live().subvolumes().count() > 1 { 120 } else { 0 },
        rare: 0,
        started: 0,
        twins: 0,
        ranges: 0,
        reads: 0,
        protects: false,
    };
    let mut generator = Generator::new(character);
    for number in 0..calls {
        let call = if number == calls / 2 { Call::Sync } else { generator.draw(session.live(), rng) };
        generator.make(session, &call)?;
    }
    session.verify_space()?;
    session.verify()
}
