//! What a snapshot and a clone cost in process, in memory, while there are more and more of them.

use std::time::Instant;

use varvefs::SnapshotOptions;

fn main() {
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
