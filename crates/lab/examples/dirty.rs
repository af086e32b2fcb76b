//! What a snapshot costs in process, in memory, by how much of its source is dirty, and what the first write to a file that
//! was dirty costs afterwards, when nothing has been written back yet.

use std::time::Instant;

use varvefs::{File, OpenOptions, SnapshotOptions};

const MIB: usize = 1 << 20;

fn main() {
    let rounds: usize = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(20);
    // Nothing is written back but by whoever asks.
    let options = varvefs::PoolOptions::new().dirty_bytes_max(512 << 20).background(false);
    let pool = options.in_memory(2 << 30).expect("a pool");
    let fs = pool.filesystem();
    let open =
        |path: &str| -> File { OpenOptions::new().write(true).create(true).open(&fs, path).expect("a file") };
    let middle = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    for (mib, files) in [(0, 0), (1, 1), (16, 1), (64, 1), (1, 256), (16, 4096), (64, 16384)] {
        let (mut snapshots, mut writes) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            let origin = format!("/origin {mib} {files} {round}");
            fs.create_subvolume(&origin).expect("a subvolume");
            fs.sync().expect("sync");
            let path = |n: usize| format!("{origin}/{n}");
            let data = vec![7; MIB];
            for n in 0..files {
                let file = open(&path(n));
                let mut left = mib * MIB / files;
                while left > 0 {
                    let len = left.min(MIB);
                    left -= len;
                    file.write_all_at(&data[..len], left as u64).expect("write");
                }
            }
            let file = (files > 0).then(|| open(&path(0)));
            let begun = Instant::now();
            fs.snapshot(&origin, format!("/s {mib} {files} {round}"), SnapshotOptions::new())
                .expect("snapshot");
            snapshots.push(begun.elapsed().as_nanos() as f64 / 1e3);
            if let Some(file) = file {
                let begun = Instant::now();
                file.write_all_at(b"changed", 0).expect("write");
                writes.push(begun.elapsed().as_nanos() as f64 / 1e3);
            }
            fs.sync().expect("sync");
            fs.delete_subvolume(&origin).expect("delete");
            fs.delete_subvolume(format!("/s {mib} {files} {round}")).expect("delete");
            fs.sync().expect("sync");
        }
        let write = if writes.is_empty() {
            String::new()
        } else {
            format!(", the first write after it {:.1} us", middle(&mut writes))
        };
        println!("{mib} MiB dirty in {files} files: snapshot {:.1} us{write}", middle(&mut snapshots));
    }
    let report = pool.check(false).expect("check");
    println!("check: {}", if report.is_clean() { "clean".into() } else { format!("{report:?}") });
}
