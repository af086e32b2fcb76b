//! Looking at pools: `varve inspect` and `varve stats`, mounted or not, damaged or not.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::Value;

use crate::harness::{Mount, Random, Scratch, can_mount, check, output, seed, succeed, varve};

fn inspect(pool: &Path, what: &[&str]) -> Value {
    let text = succeed(varve(&["inspect", "--json"]).arg(pool).args(what));
    let human = succeed(varve(&["inspect"]).arg(pool).args(what));
    assert!(human.len() > 40 && !human.contains('{'), "{what:?} for people:\n{human}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{what:?}: {error}\n{text}"))
}

fn fails(pool: &Path, what: &[&str], status: i32, word: &str) {
    let out = output(varve(&["inspect"]).arg(pool).args(what));
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(status), "{what:?}: {said}");
    assert!(said.contains(word), "{what:?}: {said}");
}

/// Goal: every part of a pool can be seen, and lookups say what the filesystem says. Method: a pool with a known tree;
/// each part as JSON and for people; a file's inode, extents and names followed from the path to the blocks.
#[test]
fn every_part_can_be_seen() {
    let scratch = Scratch::new("inspect");
    let tree = scratch.subdir("tree");
    fs::create_dir(tree.join("dir")).expect("a directory");
    let file = fs::File::create(tree.join("dir/file")).expect("a file");
    for at in [0, 3 << 20] {
        file.write_all_at(&[5; 10_000], at).expect("a sparse file");
    }
    fs::write(tree.join("small"), "inline").expect("a file");
    fs::hard_link(tree.join("small"), tree.join("twin")).expect("a link");
    let pool = scratch.pool("pool", "64M");
    succeed(varve(&["import"]).arg(&tree).arg(format!("{}:/", pool.display())));
    let whole = fs::read(&pool).expect("the pool is a file");

    let overview = inspect(&pool, &[]);
    assert_eq!(overview["clean"], true, "{overview}");
    assert_eq!(overview["size_bytes"], 64 << 20);
    let superblock = inspect(&pool, &["superblock"]);
    let labels = superblock["labels"].as_array().expect("labels");
    assert!(labels.len() == 2 && labels.iter().all(|label| label["valid"] == true), "{superblock}");
    let slots = superblock["slots"].as_array().expect("slots");
    let newest = slots.iter().filter_map(|slot| slot["generation"].as_u64()).max();
    assert_eq!(superblock["newest"]["generation"].as_u64(), newest, "{superblock}");
    assert_eq!(slots.iter().filter(|slot| slot["generation"].as_u64() == newest).count(), 2, "one an end");

    let path = inspect(&pool, &["path", "/dir/file"]);
    assert_eq!(path["size_bytes"], (3 << 20) + 10_000);
    assert_eq!(path["mode"], format!("{:04o}", fs::metadata(tree.join("dir/file")).unwrap().mode() & 0o7777));
    let extents = path["extents"].as_array().expect("extents");
    assert_eq!(extents.len(), 2, "{path}");
    assert_eq!(extents[1]["file_offset"], 3 << 20);
    assert_eq!(extents[1]["len_bytes"], 12_288);
    let number = path["inode"].as_u64().expect("a number").to_string();
    let inode = inspect(&pool, &["inode", &number]);
    assert_eq!(inode["extents"], path["extents"]);
    let twin = inspect(&pool, &["path", "/twin"]);
    assert_eq!(twin["inode"], inspect(&pool, &["path", "small"])["inode"]);
    assert_eq!((twin["links_count"].as_u64(), twin["inline_bytes"].as_u64()), (Some(2), Some(6)));

    // From the root block to a leaf by addresses.
    let roots = inspect(&pool, &["roots"]);
    let names =
        roots["trees"].as_array().expect("trees").iter().find(|tree| tree["tree"] == "names").cloned();
    let addr = names.expect("a tree of names")["addrs"][0].as_str().expect("an address").to_owned();
    let node = inspect(&pool, &["node", &addr]);
    assert_eq!(node["copies"][0]["holds"], "node", "{node}");
    let shown = node["copies"][0]["entries"].as_array().expect("entries");
    assert!(shown.iter().any(|entry| entry["name"] == "twin"), "{node}");
    let all = inspect(&pool, &["tree", "names"]);
    assert_eq!(all["entries"].as_array().map(Vec::len), Some(4), "{all}");
    let two = inspect(&pool, &["tree", "names", "--limit", "2"]);
    let rest =
        inspect(&pool, &["tree", "names", "--from", two["next_key"].as_str().expect("there are more")]);
    assert_eq!(rest["entries"][0], all["entries"][2]);
    assert_eq!(inspect(&pool, &["ring"])["batches_count"], 0, "the log of a closed pool is empty");

    fails(&pool, &["path", "/dir/nothing"], 1, "there is no nothing");
    fails(&pool, &["path", "/small/below"], 1, "not a directory");
    fails(&pool, &["inode", "99999"], 1, "there is no inode 99999");
    fails(&pool, &["node", "0x7fffffff000"], 1, "outside the pool");
    fails(&pool, &["node", "5"], 2, "no address of a block");
    fails(&pool, &["tree", "nonsense"], 2, "the trees are inodes, names");
    fails(&pool, &["tree", "names", "--from", "xyz"], 2, "hexadecimal");
    fails(&pool, &["ring", "--batch", "7"], 1, "has no batch 7");
    fails(&tree.join("dir/file"), &[], 1, "holds no pool");
    assert!(fs::read(&pool).expect("the pool is a file") == whole, "looking changed something");

    // One end of the device is lost: the other tells the same.
    fs::File::options()
        .write(true)
        .open(&pool)
        .and_then(|pool| pool.write_all_at(&[0xee; 400 << 10], 0))
        .expect("a damaged pool");
    let damaged = inspect(&pool, &["superblock"]);
    assert_eq!(damaged["labels"][0]["valid"], false, "{damaged}");
    assert_eq!(damaged["newest"]["generation"].as_u64(), newest);
    assert_eq!(inspect(&pool, &["path", "/dir/file"])["extents"], path["extents"]);
}

/// Goal: looking at a damaged pool ends with an answer or a sentence, never with a crash of the program. Method: bytes of
/// labels, superblocks, nodes and the log are overwritten at random, and every part is asked for.
#[test]
fn damage_is_survived() {
    let scratch = Scratch::new("inspect-damage");
    let tree = scratch.subdir("tree");
    for number in 0..200 {
        fs::write(tree.join(format!("file{number}")), vec![7; number * 50]).expect("a file");
    }
    let pool = scratch.pool("pool", "64M");
    succeed(varve(&["import"]).arg(&tree).arg(format!("{}:/", pool.display())));
    let roots = inspect(&pool, &["roots"]);
    // Where the nodes of the trees of inodes and names lie on the device.
    let mut places = Vec::new();
    for name in [0, 1] {
        for addr in roots["trees"][name]["addrs"].as_array().expect("addresses") {
            let node = inspect(&pool, &["node", addr.as_str().expect("an address")]);
            let offset =
                node["copies"][0]["device_offset"].as_str().expect("an offset").trim_start_matches("0x");
            places.push((u64::from_str_radix(offset, 16).expect("a number"), 4096));
        }
    }
    let size = fs::metadata(&pool).expect("the pool").len();
    places.extend([
        (0, 4096),
        (size - 4096, 4096),
        (64 << 10, 256 << 10),
        (size - (448 << 10), 256 << 10),
        (1 << 20, 64 << 10),
    ]);
    let seed = seed();
    let mut random = Random::new(seed);
    let file = fs::File::options().read(true).write(true).open(&pool).expect("the pool");
    let mut refusals = 0;
    for round in 0..25 {
        let mut before = Vec::new();
        for _ in 0..=random.below(6) {
            let (start, len) = places[random.below(places.len() as u64) as usize];
            let at = start + random.below(len - 64);
            let mut bytes = vec![0; 1 + random.below(60) as usize];
            file.read_exact_at(&mut bytes, at).expect("the pool can be read");
            before.push((at, bytes.clone()));
            bytes = random.bytes(bytes.len());
            file.write_all_at(&bytes, at).expect("the pool can be written");
        }
        for what in [
            &[][..],
            &["superblock"],
            &["ring"],
            &["roots"],
            &["tree", "names"],
            &["inode", "1"],
            &["path", "/file7"],
        ] {
            let out = output(varve(&["inspect", "--json"]).arg(&pool).args(what));
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            match out.status.code() {
                Some(0) => {
                    assert!(serde_json::from_slice::<Value>(&out.stdout).is_ok(), "seed {seed} round {round}")
                }
                Some(1) if said.starts_with("varve inspect: ") && !said.contains("panicked") => refusals += 1,
                status => panic!("seed {seed} round {round} {what:?}: {status:?} {said}"),
            }
        }
        for (at, bytes) in before.into_iter().rev() {
            file.write_all_at(&bytes, at).expect("the pool can be written");
        }
    }
    assert!(refusals > 0, "the damage was never met");
    check(&pool);
}

/// Goal: a mounted pool can be looked at, also while it is written to, and shows what has been synced. Method: files are
/// made and synced, and each is looked for on the device at once, while another thread keeps writing; then after a kill.
#[test]
fn a_mounted_pool_can_be_seen() {
    if !can_mount("a_mounted_pool_can_be_seen") {
        return;
    }
    let scratch = Scratch::new("inspect-mounted");
    let pool = scratch.pool("pool", "256M");
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0u64.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let path = mount.path(&format!("noise{}", number % 50));
                fs::write(&path, vec![number as u8; 100_000]).expect("a file");
                if number % 20 == 0 {
                    fs::File::open(&path).and_then(|file| file.sync_all()).expect("a sync");
                }
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for number in 0..15 {
                let name = format!("file{number}");
                fs::write(mount.path(&name), vec![1; 5000 + number]).expect("a file");
                fs::File::open(mount.path(&name)).and_then(|file| file.sync_all()).expect("a sync");
                let inode = fs::metadata(mount.path(&name)).expect("our own file").ino();
                // It tries some times itself to get a picture that nobody writes over; a busy machine may take more.
                let mut tries = 0;
                let text = loop {
                    let out = output(varve(&["inspect", "--json"]).arg(&pool).args(["path", &name]));
                    if out.status.success() {
                        break String::from_utf8_lossy(&out.stdout).into_owned();
                    }
                    tries += 1;
                    assert!(tries < 500, "{name}: {}", String::from_utf8_lossy(&out.stderr));
                };
                let seen: Value = serde_json::from_str(&text).expect("JSON");
                assert_eq!(
                    (seen["inode"].as_u64(), seen["size_bytes"].as_u64()),
                    (Some(inode), Some(5000 + number as u64))
                );
            }
        }));
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    mount.kill();
    let ring = inspect(&pool, &["ring"]);
    let last = ring["batches"].as_array().and_then(|batches| batches.last()).cloned();
    let last = last.unwrap_or_else(|| panic!("a killed pool has a log: {ring}"))["batch"]
        .as_u64()
        .expect("a number");
    let batch = inspect(&pool, &["ring", "--batch", &last.to_string()]);
    assert_eq!(batch["batch"], last);
    assert_eq!(inspect(&pool, &["path", "/file14"])["size_bytes"], 5014);
    assert_eq!(inspect(&pool, &[])["clean"], false);
    check(&pool);
}

/// The keys that lead to a figure or a word in `value`, as the pages under docs write them, into `found`.
pub(crate) fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let dot = if path.is_empty() { "" } else { "." };
                keys(value, &format!("{path}{dot}{key}"), found);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| keys(value, &format!("{path}[]"), found)),
        _ => {
            found.insert(path.to_owned());
        }
    }
}

/// Goal: what `varve stats --json` prints is what docs/stats.md says, mounted or not, once or watched. Method: the keys
/// of each against the page.
#[test]
fn statistics_are_as_documented() {
    let text = include_str!("../../../../docs/stats.md");
    let documented: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(key, _)| key.to_owned())
        .collect();
    let scratch = Scratch::new("stats");
    let pool = scratch.pool("pool", "64M");
    let keys_of = |text: &str| {
        let mut found = BTreeSet::new();
        keys(&serde_json::from_str(text).expect("JSON"), "", &mut found);
        found
    };
    assert_eq!(keys_of(&succeed(varve(&["stats", "--json"]).arg(&pool))), documented);
    let out = output(varve(&["stats", "--watch"]).arg(&pool));
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("leave --watch away"));
    assert_eq!(output(varve(&["stats", "--watch=0"]).arg(&pool)).status.code(), Some(2));
    assert_eq!(output(varve(&["stats", "--count", "2"]).arg(&pool)).status.code(), Some(2));
    if !can_mount("statistics_are_as_documented") {
        return;
    }
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    fs::write(mount.path("file"), "some").expect("a file");
    let lines = succeed(varve(&["stats", "--json", "--watch=0.1", "--count", "3"]).arg(&mount.point));
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(lines.len(), 3);
    for line in &lines {
        assert_eq!(keys_of(line), documented);
    }
    let mount_of: Value = serde_json::from_str(lines[0]).expect("JSON");
    assert_eq!(mount_of["mountpoint"].as_str(), mount.point.to_str());
    assert_eq!(mount_of["pid"], mount.pid());
    let text = succeed(varve(&["stats", "--watch=0.1", "--count", "2"]).arg(&mount.point));
    assert!(text.matches("device ").count() == 2 && text.contains("/s"), "{text}");
    mount.unmount();
}
