//! What the map of a file costs an extent: of a file and of its clones, with a million extents, warm and cold.
//!
//! The extents are space set aside, a block in every second one, so that nothing but their records is written. Each line is
//! one pass over the whole file with exact flags; the file is as it is named.

use std::time::Instant;

use varvefs::{Allocate, ExtentKind, File, Filesystem, PoolOptions};

fn pass(what: &str, file: &File, wanted: u64) -> f64 {
    let begun = Instant::now();
    let (mut extents, mut shared) = (0u64, 0u64);
    for extent in file.extents(0) {
        let extent = extent.expect("an extent");
        extents += u64::from(extent.kind != ExtentKind::Hole);
        shared += u64::from(extent.shared);
    }
    let ns = begun.elapsed().as_nanos() as f64 / extents as f64;
    assert!(extents >= wanted, "{extents} extents");
    println!("{what}: {ns:.1} ns an extent, {shared} of {extents} shared");
    ns
}

fn rows(fs: &Filesystem, when: &str, extents: u64) {
    for name in ["alone", "same", "clone", "other"] {
        pass(&format!("{name}, {when}"), &fs.open(format!("/{name}")).expect("open"), extents);
    }
}

fn main() {
    let extents: u64 = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(1_000_000);
    let dir = std::env::temp_dir().join(format!("varve-extents-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let path = dir.join("pool");
    // All of it stays in memory once it has been read.
    let options = PoolOptions::new().cache_bytes(4 << 30);
    let pool = options.create(&path, 32 << 30).expect("a pool");
    let fs = pool.filesystem();
    // Nobody shares it; one version that two hold; a clone that was written to, and one of which both were.
    for name in ["alone", "same", "old", "both"] {
        let file = fs.create(format!("/{name}")).expect("create");
        for n in 0..extents {
            file.allocate(n * 8192, 4096, Allocate::Reserve { keep_size: false }).expect("reserve");
        }
        file.sync_all().expect("sync");
    }
    let write = |name: &str, at: u64| {
        let file = varvefs::OpenOptions::new().read(true).write(true).open(&fs, name).expect("open");
        file.write_all_at(&[7; 4096], at).expect("write");
        file.sync_all().expect("sync");
    };
    for (source, clone) in [("/same", "/same2"), ("/old", "/clone"), ("/both", "/other")] {
        fs.clone_file(source, clone).expect("clone");
    }
    write("/clone", 4096);
    write("/both", 4096);
    write("/other", 1 << 20);
    rows(&fs, "first", extents);
    rows(&fs, "warm", extents);
    pool.close().expect("close");
    let pool = options.open(&path).expect("a pool");
    rows(&pool.filesystem(), "cold", extents);
    rows(&pool.filesystem(), "warm again", extents);
    drop(pool);
    std::fs::remove_dir_all(&dir).expect("the directory goes");
}
