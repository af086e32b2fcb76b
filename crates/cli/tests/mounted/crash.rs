//! SIGKILL of the mounted daemon under load, again and again.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::*;

const WORKERS: u64 = 4;
/// Names a worker uses.
const NAMES: u64 = 24;
/// Longest that a worker works.
const WORK_LIMIT: Duration = Duration::from_secs(120);

/// The names of a worker's directory, each with the number that its contents come from.
type State = BTreeMap<String, u64>;

/// Goal: after a kill at any moment the filesystem is the result of a prefix of what was done, with everything that an
/// fsync has acknowledged. Method: workers change directories of their own, one step after the other, and write down
/// every state they pass through and the last one they know to be durable; what is found after the kill must be one of
/// the states from there on, complete to the byte.
#[test]
fn a_kill_loses_nothing_acknowledged() {
    if !can_mount("a_kill_loses_nothing_acknowledged") {
        return;
    }
    let rounds = scale("VARVE_TEST_KILLS", 8, 200);
    let scratch = Scratch::new("kill");
    let pool = scratch.pool("pool.img", "256M");
    let point = scratch.path("mnt");
    let mut random = Random::new(seed());
    let mut states: Vec<State> = vec![State::new(); WORKERS as usize];
    let (mut steps, mut slowest, mut went_back) = (0, Duration::ZERO, 0);
    let mount = Mount::start(&pool, &point);
    for worker in 0..WORKERS {
        fs::create_dir(point.join(format!("worker{worker}"))).expect("a directory");
    }
    mount.sync();
    mount.unmount();
    for round in 0..rounds {
        let mount = Mount::start(&pool, &point);
        slowest = slowest.max(mount.took);
        let deadline = Duration::from_millis(100 + random.below(500));
        let seeds: Vec<u64> = (0..WORKERS).map(|_| random.next()).collect();
        let begun = &AtomicU64::new(0);
        let runs: Vec<Run> = thread::scope(|scope| {
            let workers: Vec<_> = (0..WORKERS)
                .map(|worker| {
                    let dir = point.join(format!("worker{worker}"));
                    let state = states[worker as usize].clone();
                    let seed = seeds[worker as usize];
                    scope.spawn(move || work_until_killed(&dir, state, seed, u64::MAX, begun))
                })
                .collect();
            // The clock begins when everybody has made a step.
            let started = Instant::now();
            while begun.load(Relaxed) < WORKERS && started.elapsed() < WORK_LIMIT {
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(deadline);
            mount.kill();
            workers
                .into_iter()
                .map(|worker| worker.join().expect("a worker ends with an error, not a panic"))
                .collect()
        });
        if round % 10 == 0 {
            check(&pool);
        }
        let mount = Mount::start(&pool, &point);
        slowest = slowest.max(mount.took);
        for (worker, run) in runs.iter().enumerate() {
            let found = read_state(&point.join(format!("worker{worker}")));
            let Some(at) = run.step_of(&found) else {
                panic!(
                    "round {round}, worker {worker}: what was found is no state from step {} (durable) to {}:\n\
                     found   {found:?}\ndurable {:?}\nlast    {:?}",
                    run.durable,
                    run.states.len() - 1,
                    run.states[run.durable],
                    run.states.last(),
                );
            };
            steps += at;
            went_back += run.states.len() - 1 - at;
            states[worker] = found;
        }
        // What has been seen after a recovery stays: every second round goes on without a clean unmount between.
        if round % 2 == 0 { mount.unmount() } else { mount.kill() }
    }
    check(&pool);
    say(&format!(
        "{rounds} kills: {steps} steps kept, {went_back} unacknowledged steps lost, slowest mount {} ms",
        slowest.as_millis()
    ));
    assert!(steps > rounds as usize, "the workers did next to nothing, so nothing was tested");
}

/// Goal: with the mount option `sync` a kill loses nothing that was answered. Method: one worker's steps as above; what is
/// found must be the state after the last step, or before it if that was not answered.
#[test]
fn a_kill_loses_nothing_answered_on_a_sync_mount() {
    if !can_mount("a_kill_loses_nothing_answered_on_a_sync_mount") {
        return;
    }
    let scratch = Scratch::new("sync-kill");
    let pool = scratch.pool("pool.img", "256M");
    let point = scratch.path("mnt");
    let mut random = Random::new(seed());
    let (mut state, mut steps) = (State::new(), 0);
    for round in 0..scale("VARVE_TEST_KILLS", 6, 100) {
        let mount = Mount::start_with(&pool, &point, &["-o", "sync"]);
        let (pause, seed) = (Duration::from_millis(50 + random.below(400)), random.next());
        let begun = &AtomicU64::new(0);
        let run = thread::scope(|scope| {
            let before = state.clone();
            let worker = scope.spawn(|| work_until_killed(&point, before, seed, u64::MAX, begun));
            let started = Instant::now();
            while begun.load(Relaxed) == 0 && started.elapsed() < WORK_LIMIT {
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(pause);
            mount.kill();
            worker.join().expect("a worker ends with an error, not a panic")
        });
        let mount = Mount::start(&pool, &point);
        let found = read_state(&point);
        let last = run.states.len() - 1;
        assert!(
            run.states[last.saturating_sub(1)..].contains(&found),
            "round {round}: what was found is not what was answered:\nfound {found:?}\nlast  {:?}",
            run.states[last]
        );
        steps += last;
        state = found;
        mount.kill();
    }
    check(&pool);
    say(&format!("sync: {steps} steps, and each that was answered was kept"));
    assert!(steps > 1, "the worker did next to nothing, so nothing was tested");
}

/// What a worker did until the filesystem was killed.
struct Run {
    /// The state at the beginning and after each step; the last step may or may not have happened.
    states: Vec<State>,
    /// The last state known to be durable.
    durable: usize,
}

impl Run {
    /// The step after which things stood as they were found, if that is one a crash may leave.
    fn step_of(&self, found: &State) -> Option<usize> {
        (self.durable..self.states.len()).find(|at| self.states[*at] == *found)
    }
}

/// `begun` counts who has made a step.
fn work_until_killed(dir: &Path, state: State, seed: u64, steps_max: u64, begun: &AtomicU64) -> Run {
    let mut run = Run { states: vec![state], durable: 0 };
    let mut random = Random::new(seed);
    let started = Instant::now();
    // The bound is for a daemon that cannot be killed; in a good run the first error ends the loop.
    let mut had_changed = false;
    for _ in 0..steps_max {
        if started.elapsed() > WORK_LIMIT || step(dir, &mut run, &mut random).is_err() {
            break;
        }
        let has_changed = run.states.len() > 1;
        begun.fetch_add(u64::from(has_changed && !had_changed), Relaxed);
        had_changed = has_changed;
    }
    run
}

/// One change. The new state is written down before the call that makes it, because the kill may come in between.
fn step(dir: &Path, run: &mut Run, random: &mut Random) -> io::Result<()> {
    let mut next = run.states.last().expect("there is a first state").clone();
    let name = format!("name{}", random.below(NAMES));
    let path = dir.join(&name);
    let other = format!("name{}", random.below(NAMES));
    match random.below(10) {
        // A new file, complete and durable before it gets its name; an fsync acknowledges all that went before it.
        0..4 => {
            let (number, from) = write_temporary(dir, random, true)?;
            run.durable = run.states.len() - 1;
            next.insert(name, number);
            run.states.push(next);
            fs::rename(from, path)
        }
        // Over an existing name without any fsync: the old file or the whole new one.
        4..6 if next.contains_key(&name) => {
            let (number, from) = write_temporary(dir, random, false)?;
            next.insert(name, number);
            run.states.push(next);
            fs::rename(from, path)
        }
        6 if next.contains_key(&name) => {
            next.remove(&name);
            run.states.push(next);
            fs::remove_file(path)
        }
        // Between two names of one file rename does nothing, by POSIX.
        7 if next.contains_key(&name) && next.get(&name) != next.get(&other) => {
            let number = next.remove(&name).expect("it is there");
            next.insert(other.clone(), number);
            run.states.push(next);
            fs::rename(path, dir.join(other))
        }
        8 if next.contains_key(&name) && !next.contains_key(&other) => {
            next.insert(other.clone(), next[&name]);
            run.states.push(next);
            fs::hard_link(path, dir.join(other))
        }
        _ => {
            fs::File::open(dir)?.sync_all()?;
            run.durable = run.states.len() - 1;
            Ok(())
        }
    }
}

fn write_temporary(dir: &Path, random: &mut Random, sync: bool) -> io::Result<(u64, PathBuf)> {
    let number = random.next();
    let path = dir.join("temporary");
    let mut file = fs::File::create(&path)?;
    // In pieces, so that there is something to be torn.
    for piece in contents(number).chunks(40_000) {
        file.write_all(piece)?;
    }
    if sync {
        file.sync_all()?;
    }
    Ok((number, path))
}

/// What a file with this number holds: the number, then up to 200,000 bytes that come from it.
fn contents(number: u64) -> Vec<u8> {
    let mut random = Random::new(number);
    let len = [0, 10, 3_000, 9_000, 60_000, 200_000][random.below(6) as usize];
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend(random.bytes(len));
    bytes
}

fn read_state(dir: &Path) -> State {
    let mut state = State::new();
    for entry in fs::read_dir(dir).expect("the directory is there") {
        let name = entry.expect("an entry").file_name().into_string().expect("our names are text");
        if name == "temporary" {
            continue;
        }
        let bytes =
            fs::read(dir.join(&name)).unwrap_or_else(|error| panic!("{name} cannot be read: {error}"));
        let number = bytes.first_chunk::<8>().map(|first| u64::from_le_bytes(*first));
        let number =
            number.unwrap_or_else(|| panic!("{name} has {} bytes: it was exposed half written", bytes.len()));
        assert!(bytes == contents(number), "{name} ({} bytes) is not what was written", bytes.len());
        state.insert(name, number);
    }
    state
}

/// Goal: the judgement above can fail. Method: the same work on the host, then a state older than the last fsync, one
/// that never was, and a file that is half there.
#[test]
fn the_judgement_sees_losses() {
    let scratch = Scratch::new("judgement");
    let dir = scratch.subdir("worker");
    let run = work_until_killed(&dir, State::new(), 7, 400, &AtomicU64::new(0));
    let found = read_state(&dir);
    assert_eq!(
        run.step_of(&found),
        Some(run.states.len() - 1),
        "nothing was killed, so the last state is found"
    );
    let older = (0..run.durable).rev().map(|at| &run.states[at]);
    let lost = older.into_iter().find(|state| !run.states[run.durable..].contains(state));
    assert_eq!(run.step_of(lost.expect("the work moved on between fsyncs")), None);
    let mut never = found.clone();
    never.insert("name0".to_owned(), 1);
    assert_eq!(run.step_of(&never), None);
    let (name, _) = found.iter().max_by_key(|(_, number)| contents(**number).len()).expect("there are files");
    let file = fs::File::options().write(true).open(dir.join(name)).expect("our own file");
    file.set_len(9).expect("a file can be cut");
    let half = std::panic::catch_unwind(|| read_state(&dir));
    assert!(half.is_err(), "a file that was half there was taken for whole");
}
