//! `varve inspect` on files that several subvolumes see: which record, which versions and which extents each of them has.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use serde_json::Value;

use crate::harness::{Mount, Random, Scratch, can_mount, check, output, seed, succeed, varve};
use crate::look::keys;

const BLOCK: u64 = 4096;

fn inspect(pool: &Path, what: &[&str]) -> Value {
    let text = succeed(varve(&["inspect", "--json"]).arg(pool).args(what));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{what:?}: {error}\n{text}"))
}

fn refused(pool: &Path, what: &[&str], status: i32, words: &[&str]) {
    let out = output(varve(&["inspect"]).arg(pool).args(what));
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(status), "{what:?}: {said}");
    assert!(words.iter().all(|word| said.contains(word)), "{what:?}: {said}");
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Where each block of data is, according to a list of extents.
fn blocks(extents: &Value, offset: &str, address: impl Fn(&Value) -> u64) -> BTreeMap<u64, u64> {
    let data = extents.as_array().expect("a list").iter().filter(|extent| extent["kind"] == "data");
    data.flat_map(|extent| {
        let (first, at) = (number(&extent[offset]), address(extent));
        (0..number(&extent["len_bytes"]) / BLOCK).map(move |n| (first + n * BLOCK, at + n * BLOCK))
    })
    .collect()
}

/// What `inspect path` says of a file's blocks against what `varve extents` says, which the engine has worked out.
fn same_as_engine(pool: &Path, path: &str) -> Value {
    let seen = inspect(pool, &["path", path]);
    let text = succeed(varve(&["extents", "--json"]).arg(format!("{}:{path}", pool.display())));
    let engine: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(seen["inode"], engine["inode"], "{path}");
    let hexadecimal = |extent: &Value| {
        let text = extent["addr"].as_str().expect("an address").trim_start_matches("0x").to_owned();
        u64::from_str_radix(&text, 16).expect("a number")
    };
    let expected = blocks(&engine["extents"], "offset_bytes", |extent| number(&extent["address_bytes"]));
    assert_eq!(blocks(&seen["extents"], "file_offset", hexadecimal), expected, "{path}: {seen}");
    seen
}

/// Goal: each subvolume's own view of a file is shown, with the version that every part comes from, and names in them are found
/// through paths and numbers. Method: random writes, cuts and holes in a file between snapshots, attributes and names that
/// differ; every view of it against what the engine says of it, and the numbers against those of the mount.
#[test]
fn each_view_is_its_own() {
    if !can_mount("each_view_is_its_own") {
        return;
    }
    let scratch = Scratch::new("inspect-views");
    let pool = scratch.pool("pool", "128M");
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    let mut random = Random::new(seed());
    succeed(varve(&["subvolume", "create"]).arg(mount.path("sub")));
    fs::create_dir(mount.path("sub/dir")).expect("a directory");
    fs::write(mount.path("sub/gone"), vec![3; 9000]).expect("a file");
    fs::write(mount.path("sub/small"), "inline").expect("a file");
    let mut names = vec!["sub".to_owned()];
    for round in 0..6 {
        let file =
            fs::File::options().create(true).truncate(false).write(true).open(mount.path("sub/dir/file"));
        let file = file.expect("a file");
        if round == 0 {
            // Whatever the seed: no cut leaves a file in which nothing is stored, which has no versions.
            file.write_all_at(&[5; 100], 0).expect("room");
        }
        for _ in 0..4 {
            let at = random.below(400) * BLOCK;
            let len = 1 + random.below(30 * BLOCK) as usize;
            file.write_all_at(&random.bytes(len), at).expect("room");
        }
        match round {
            // Whatever the seed: a snapshot holds what the next cut takes away.
            2 => file.write_all_at(&[7; 100], 450 * BLOCK).expect("room"),
            3 => file.set_len(60 * BLOCK).expect("a cut"),
            _ if random.below(2) == 0 => file.set_len((1 + random.below(499)) * BLOCK).expect("a cut"),
            _ => {}
        }
        let name = format!("snap{round}");
        let options: &[&str] = if round % 2 == 0 { &["--read-only"] } else { &[] };
        succeed(varve(&["snapshot"]).args(options).arg(mount.path("sub")).arg(mount.path(&name)));
        if round % 2 == 1 {
            let inside = fs::File::options().write(true).open(mount.path(&format!("{name}/dir/file")));
            inside.expect("a file").write_all_at(&[9; 5000], 70 * BLOCK).expect("room");
        }
        names.push(name);
    }
    fs::remove_file(mount.path("sub/gone")).expect("a file");
    fs::write(mount.path("sub/new"), "new").expect("a file");
    // One in another, in a directory of it.
    succeed(varve(&["snapshot"]).arg(mount.path("sub")).arg(mount.path("snap1/dir/inner")));
    names.push("snap1/dir/inner".to_owned());
    let expected: BTreeMap<String, (u64, u64, u64)> = names
        .iter()
        .map(|name| {
            let path = format!("/{name}/dir/file");
            let metadata = fs::metadata(mount.path(&path[1..])).expect("it is there");
            (path, (metadata.ino(), metadata.len(), metadata.uid().into()))
        })
        .collect();
    // Mounted, and what has been synced.
    mount.sync();
    for (path, (inode, size, _)) in &expected {
        let seen = inspect(&pool, &["path", path]);
        assert_eq!((number(&seen["inode"]), number(&seen["size_bytes"])), (*inode, *size), "{path}");
    }
    mount.unmount();

    let listed: Value =
        serde_json::from_str(&succeed(varve(&["subvolume", "list", "--json"]).arg(&pool))).expect("JSON");
    let id_of = |path: &str| {
        let all = listed.as_array().expect("a list");
        number(&all.iter().find(|one| one["path"] == path).expect("it is listed")["id"])
    };
    let (mut inherited, mut own, mut cut) = (0, 0, 0);
    for (path, (inode, size, uid)) in &expected {
        let seen = same_as_engine(&pool, path);
        assert_eq!(number(&seen["inode"]), *inode, "{path}");
        assert_eq!((number(&seen["size_bytes"]), number(&seen["uid"])), (*size, *uid), "{path}");
        let subvolume = path.trim_end_matches("/dir/file");
        assert_eq!(number(&seen["subvolume"]["id"]), id_of(subvolume), "{path}");
        // The same by its number, and by its own number in that subvolume.
        let without_path = |mut doc: Value| {
            doc.as_object_mut().expect("a map").remove("path");
            doc
        };
        let by_path = without_path(seen.clone());
        assert_eq!(inspect(&pool, &["inode", &inode.to_string()]), by_path);
        let own_number = number(&seen["own_number"]).to_string();
        let id = id_of(subvolume).to_string();
        for name in [subvolume, &id] {
            assert_eq!(inspect(&pool, &["inode", &own_number, "--subvolume", name]), by_path);
        }
        // The key that is shown leads to the very record.
        let key = seen["record"]["key"].as_str().expect("a key");
        let tree = inspect(&pool, &["tree", "inodes", "--from", key, "--limit", "1"]);
        let entry = &tree["entries"][0];
        assert_eq!((&entry["key"], &entry["size_bytes"]), (&seen["record"]["key"], &seen["size_bytes"]));
        assert_eq!(entry["version_key"], seen["record"]["version_key"]);
        // Versions fall, and every extent is of one of them.
        let versions: Vec<u64> = seen["versions"]
            .as_array()
            .expect("versions")
            .iter()
            .map(|one| number(&one["version"]))
            .collect();
        assert!(
            versions.is_sorted_by(|a, b| a > b) && versions.first() == Some(&number(&seen["data_version"])),
            "{seen}"
        );
        cut += seen["versions"]
            .as_array()
            .expect("versions")
            .iter()
            .filter(|one| !one["visible_bytes"].is_null())
            .count();
        for extent in seen["extents"].as_array().expect("extents") {
            let version = number(&extent["version"]);
            assert!(versions.contains(&version), "{seen}");
            assert_eq!(extent["inherited"], version != versions[0]);
            *(if version == versions[0] { &mut own } else { &mut inherited }) += 1;
        }
    }
    assert!(inherited > 0 && own > 0 && cut > 0, "{inherited} {own} {cut}");

    // What differs beside data.
    assert_eq!(number(&inspect(&pool, &["path", "/snap0/gone"])["size_bytes"]), 9000);
    refused(&pool, &["path", "/sub/gone"], 1, &["/sub/gone", "there is no gone"]);
    let gone = inspect(&pool, &["path", "/snap0/gone"])["own_number"].to_string();
    refused(&pool, &["inode", &gone, "--subvolume", "/sub"], 1, &["has removed it", "--subvolume"]);
    refused(&pool, &["inode", &gone], 1, &["no inode", "--subvolume"]);
    assert_eq!(inspect(&pool, &["path", "/sub/new"])["record"]["inherited"], false);
    assert_eq!(inspect(&pool, &["path", "/snap5/small"])["record"]["inherited"], true);
    let root = inspect(&pool, &["path", "/snap1/dir/inner"]);
    assert_eq!((&root["own_number"], &root["subvolume"]["name"]), (&Value::from(1), &Value::from("inner")));
    let number_there = root["inode"].to_string();
    refused(&pool, &["inode", &number_there, "--subvolume", "/sub"], 2, &["own number is 1"]);
    refused(&pool, &["inode", "1", "--subvolume", "77777"], 1, &["no subvolume 77777", "subvolume list"]);
    refused(&pool, &["inode", "1", "--subvolume", "sub"], 2, &["begins with '/'"]);
    refused(&pool, &["inode", "1", "--subvolume", "/sub/dir"], 1, &["not a subvolume"]);
    refused(&pool, &["inode", &u64::MAX.to_string()], 1, &["tree subvolumes"]);
    refused(&pool, &["path", "/sub/../x"], 2, &["without '..'"]);
    check(&pool);
}

/// Goal: what `inspect --json` says of an inode is what docs/inspect.md says. Method: the keys of a file, of a link, of one with
/// attributes, and of one in a snapshot, all together against the page.
#[test]
fn keys_are_as_documented() {
    let text = include_str!("../../../../docs/inspect.md");
    let documented: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(key, _)| key.to_owned())
        .collect();
    let scratch = Scratch::new("inspect-keys");
    let tree = scratch.subdir("tree");
    fs::write(tree.join("file"), vec![1; 50_000]).expect("a file");
    std::os::unix::fs::symlink("file", tree.join("link")).expect("a link");
    let named = std::process::Command::new("setfattr")
        .args(["-n", "user.a", "-v", "b"])
        .arg(tree.join("file"))
        .status();
    let pool = scratch.pool("pool", "64M");
    succeed(varve(&["import"]).arg(&tree).arg(format!("{}:/", pool.display())));
    let mut found = BTreeSet::new();
    for path in ["/file", "/link"] {
        keys(&inspect(&pool, &["path", path]), "", &mut found);
    }
    // What stands for a whole in the table: maps and lists.
    for whole in ["subvolume", "xattrs", "versions", "extents"] {
        found.insert(whole.to_owned());
    }
    if named.is_ok_and(|status| status.success()) {
        assert_eq!(found, documented);
    } else {
        assert!(found.is_subset(&documented), "{found:?}");
    }
}
