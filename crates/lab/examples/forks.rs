//! What a snapshot and a clone cost in process, in memory, while there are more and more of them; what reading and
//! overwriting a file costs that has a thousand clones (`forks clones [COUNT]`); and what a fork costs when the processor's
//! caches hold something else (`forks cold [COUNT]`).

use std::time::{Duration, Instant};

use varvefs::SnapshotOptions;

/// Size of the file that is cloned.
const FILE_BYTES: usize = 64 << 20;
const BLOCK_BYTES: usize = 4096;
/// Blocks overwritten in a round, then synced.
const WRITES: usize = 4_000;
const ROUNDS: usize = 9;

fn main() {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("clones") => return clones(args.next().and_then(|a| a.parse().ok()).unwrap_or(1_000)),
        Some("cold") => return cold(args.next().and_then(|a| a.parse().ok()).unwrap_or(300)),
        _ => {}
    }
    let mut args = std::env::args().skip(1);
    let forks: usize = args.next().and_then(|a| a.parse().ok()).unwrap_or(10_000);
    let files: usize = args.next().and_then(|a| a.parse().ok()).unwrap_or(1000);
    let change = args.next().is_some();
    let pool = varvefs::Pool::in_memory(2 << 30).expect("a pool");
    let fs = pool.filesystem();
    fs.create_subvolume("/origin").expect("a subvolume");
    for n in 0..files {
        fs.write(format!("/origin/{n}"), vec![7; 5000]).expect("a file");
    }
    fs.sync().expect("sync");
    fs.create_dir("/s").expect("dir");
    fs.create_dir("/c").expect("dir");
    for kind in ["snapshot", "clone"] {
        let mut times = Vec::with_capacity(forks);
        for n in 0..forks {
            if change {
                let file = varvefs::OpenOptions::new().write(true).open(&fs, "/origin/0").expect("open");
                file.write_all_at(&n.to_le_bytes(), 0).expect("write");
                file.sync_all().expect("sync");
            }
            let begun = Instant::now();
            match kind {
                "snapshot" => fs.snapshot("/origin", format!("/s/{n}"), SnapshotOptions::new()),
                _ => fs.clone_file("/origin/0", format!("/c/{n}")),
            }
            .expect(kind);
            times.push(begun.elapsed().as_nanos() as f64 / 1e3);
        }
        let middle = |part: &mut [f64]| {
            part.sort_by(f64::total_cmp);
            part[part.len() / 2]
        };
        let tenth = forks / 10;
        let first = middle(&mut times[..tenth].to_vec());
        let last = middle(&mut times[forks - tenth..].to_vec());
        println!("{kind}: {first:.2} us in the first tenth, {last:.2} us in the last of {forks}");
    }
    let begun = Instant::now();
    for n in 0..forks {
        fs.delete_subvolume(format!("/s/{n}")).expect("delete");
    }
    println!("delete: {:.2} us a snapshot", begun.elapsed().as_micros() as f64 / forks as f64);
    while pool.stats().expect("stats").reap.backlog_count > 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    println!("all reaped after {:.3} s", begun.elapsed().as_secs_f64());
    let report = pool.check(false).expect("check");
    println!("check: {}", if report.is_clean() { "clean".into() } else { format!("{report:?}") });
}

/// The medians of reading all of a file and of overwriting blocks of it anywhere, in MB/s and writes/s.
fn speed(file: &varvefs::File, random: &mut u64) -> (f64, f64) {
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    let mut buf = vec![0; 1 << 20];
    for round in 0..ROUNDS {
        let begun = Instant::now();
        for offset in (0..FILE_BYTES).step_by(buf.len()) {
            file.read_exact_at(&mut buf, offset as u64).expect("read");
        }
        reads.push(FILE_BYTES as f64 / 1e6 / begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        for _ in 0..WRITES {
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let block = (*random >> 33) as usize % (FILE_BYTES / BLOCK_BYTES);
            file.write_all_at(&[round as u8; BLOCK_BYTES], (block * BLOCK_BYTES) as u64).expect("write");
        }
        file.sync_all().expect("sync");
        writes.push(WRITES as f64 / begun.elapsed().as_secs_f64());
    }
    let middle = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    (middle(reads), middle(writes))
}

/// A file with many clones beside one without: before the first clone, and after the last.
fn clones(count: usize) {
    let pool = varvefs::Pool::in_memory(2 << 30).expect("a pool");
    let fs = pool.filesystem();
    let names = ["/cloned", "/alone"];
    let files = names.map(|name| {
        fs.write(name, vec![7; FILE_BYTES]).expect("a file");
        fs.sync().expect("sync");
        varvefs::OpenOptions::new().read(true).write(true).open(&fs, name).expect("open")
    });
    let mut random = 1;
    // Once to have it in as many pieces as it will be in, and once more to be measured.
    let before = files.each_ref().map(|file| {
        speed(file, &mut random);
        speed(file, &mut random)
    });
    for number in 0..count {
        fs.clone_file("/cloned", format!("/clone-{number}")).expect("clone");
    }
    let after = files.each_ref().map(|file| speed(file, &mut random));
    for ((name, before), after) in names.iter().zip(before).zip(after) {
        println!(
            "{name}: read {:.0} MB/s before the first of {count} clones, {:.0} after ({:.3}); overwrite {:.0}/s before, \
             {:.0}/s after ({:.3})",
            before.0,
            after.0,
            after.0 / before.0,
            before.1,
            after.1,
            after.1 / before.1
        );
    }
    let report = pool.check(false).expect("check");
    println!("check: {}", if report.is_clean() { "clean".into() } else { format!("{report:?}") });
}

/// What happens before each fork.
#[derive(Clone, Copy)]
enum Before {
    /// So many MiB of memory that has nothing to do with it are written to.
    Elsewhere(usize),
    /// Nothing, but for a while: somebody else has the processor, or its caches.
    Asleep(Duration),
}

/// Lines of memory that are gone through, each found out from the one before.
const LINES: usize = 1024;
/// Memory in which they lie.
const AROUND_BYTES: usize = 16 << 20;

/// Nanoseconds a line: what the machine itself takes to come to memory that it had a moment ago.
fn chase(lines: &[usize]) -> f64 {
    let begun = Instant::now();
    let mut at = 0;
    for _ in 0..LINES {
        at = lines[at];
    }
    std::hint::black_box(at);
    begun.elapsed().as_nanos() as f64 / LINES as f64
}

/// Forks of a subvolume and a file of which nothing is dirty, with something before each that has nothing to do with them. Beside
/// it, what the machine takes after the same to come to a line of memory: a fork comes to some hundred, code and data.
fn cold(count: usize) {
    let pool = varvefs::Pool::in_memory(256 << 20).expect("a pool");
    let fs = pool.filesystem();
    fs.create_subvolume("/origin").expect("a subvolume");
    fs.write("/origin/file", vec![7; 5000]).expect("a file");
    fs.sync().expect("sync");
    let mut elsewhere = vec![0u8; 64 << 20];
    // A ring of lines in no order.
    let mut lines = vec![0_usize; AROUND_BYTES / size_of::<usize>()];
    let mut order: Vec<usize> = (0..AROUND_BYTES / 64).collect();
    let mut random = 1_u64;
    for at in 0..LINES {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let left = order.len() - at;
        order.swap(at, at + (random >> 33) as usize % left);
    }
    // The first of each line says which is the next; the walk begins where 0 leads.
    let place = |line: usize| line * (64 / size_of::<usize>());
    lines[0] = place(order[0]);
    for at in 0..LINES {
        lines[place(order[at])] = place(order[(at + 1) % LINES]);
    }
    let elsewheres = [0, 1, 2, 4, 16, 64].map(Before::Elsewhere);
    let asleep = [1, 10].map(|ms| Before::Asleep(Duration::from_millis(ms)));
    for (number, before) in elsewheres.into_iter().chain(asleep).enumerate() {
        let (mut snapshots, mut clones, mut chases) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..count {
            let mut disturb = || match before {
                Before::Elsewhere(mib) => {
                    let part = &mut elsewhere[..mib << 20];
                    part.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
                }
                Before::Asleep(time) => std::thread::sleep(time),
            };
            let mut fork = |times: &mut Vec<f64>, fork: &dyn Fn() -> varvefs::Result<()>| {
                disturb();
                let begun = Instant::now();
                fork().expect("a fork");
                times.push(begun.elapsed().as_nanos() as f64 / 1e3);
            };
            let (snapshot, clone) = (format!("/s {number} {n}"), format!("/c {number} {n}"));
            fork(&mut snapshots, &|| fs.snapshot("/origin", &snapshot, SnapshotOptions::new()));
            fork(&mut clones, &|| fs.clone_file("/origin/file", &clone));
            chase(&lines);
            disturb();
            chases.push(chase(&lines));
        }
        let middle = |times: &mut [f64]| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        let (snapshot, clone, line) = (middle(&mut snapshots), middle(&mut clones), middle(&mut chases));
        let what = match before {
            Before::Elsewhere(mib) => format!("{mib} MiB elsewhere"),
            Before::Asleep(time) => format!("{} ms asleep", time.as_millis()),
        };
        println!(
            "{what}: snapshot {snapshot:.1} us, clone {clone:.1} us; a line of memory that was just there {line:.1} ns"
        );
    }
    std::hint::black_box(&elsewhere);
}
