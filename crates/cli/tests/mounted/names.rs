//! Names of any bytes: one name is one text wherever it is printed, and nothing in it can pass for a line of its own.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::{Mount, Scratch, can_mount, check, output, succeed, varve};

/// What is apt to be taken for something else: lines, commands to a terminal, escapes, bytes that are no text, borders.
const ODD: [&[u8]; 9] = [
    b"line\n       2        - writable   forged",
    b"esc\x1b[2J",
    b"back\\slash",
    b"back\\x5cslash",
    b"\xff\xfebytes",
    b" edges ",
    b"from -> to",
    b"A note  (mtime)",
    "\u{fc}\u{202e}txt".as_bytes(),
];

/// The bytes that a printed name stands for.
fn unescape(text: &str) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, more @ ..] = rest {
        let (byte, behind) = match (first, more) {
            (b'\\', [b'x', digits @ ..]) => {
                let pair = std::str::from_utf8(&digits[..2]).expect("two digits");
                (u8::from_str_radix(pair, 16).expect("two digits"), &digits[2..])
            }
            (b'\\', [b'n', more @ ..]) => (b'\n', more),
            (b'\\', [other, more @ ..]) => (*other, more),
            (other, more) => (*other, more),
        };
        out.push(byte);
        rest = behind;
    }
    out
}

/// What `text` says is in lines of its own, and nothing else is in it.
fn is_plain(text: &str) {
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    assert!(!text.contains('\u{202e}') && !text.contains('\u{fffd}'), "{text:?}");
}

fn json(command: &mut std::process::Command) -> Value {
    serde_json::from_str(&succeed(command)).expect("JSON")
}

fn joined(parts: &[&OsStr]) -> OsString {
    OsString::from_vec(parts.iter().flat_map(|part| part.as_bytes().to_vec()).collect())
}

fn paths(list: &Value, key: &str) -> BTreeSet<Vec<u8>> {
    let each = list.as_array().expect("a list").iter().filter_map(|entry| entry[key].as_str());
    each.map(|text| unescape(text.trim_start_matches('/'))).collect()
}

/// Goal: the names of subvolumes and files come back as they are from what is printed, in JSON and for people, and one thing is
/// one line. Method: subvolumes and files with odd names, listed, compared, mapped, inspected, and named in errors.
#[test]
fn odd_names_are_one_text() {
    if !can_mount("odd_names_are_one_text") {
        return;
    }
    let scratch = Scratch::new("names");
    let pool = scratch.pool("pool.img", "64M");
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    let at = |name: &[u8]| -> PathBuf { mount.point.join(OsStr::from_bytes(name)) };
    let odd: BTreeSet<Vec<u8>> = ODD.iter().map(|name| name.to_vec()).collect();
    for name in ODD {
        succeed(varve(&["subvolume", "create"]).arg(at(name)));
    }
    let text = succeed(varve(&["subvolume", "list"]).arg(&mount.point));
    is_plain(&text);
    assert_eq!(text.lines().count(), ODD.len() + 2, "{text}");
    let mut listed = paths(&json(varve(&["subvolume", "list", "--json"]).arg(&mount.point)), "path");
    assert!(listed.remove(&b""[..]));
    assert_eq!(listed, odd);

    // Errors are one line, and say which name.
    let errors = [
        ("create", at(ODD[0])),
        ("create", at(ODD[4])),
        ("delete", at(b"none\nvarve subvolume: all is well")),
        ("delete", at(b"none\xff")),
    ];
    for (verb, path) in errors {
        let out = output(varve(&["subvolume", verb]).arg(&path));
        let said = String::from_utf8(out.stderr).expect("text");
        is_plain(&said);
        assert_eq!((out.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        let name = path.file_name().expect("it has a name").as_bytes();
        assert!(unescape(&said).windows(name.len()).any(|part| part == name), "{said}");
    }

    // Files with odd names, and attributes, in a snapshot and not in the other.
    succeed(varve(&["subvolume", "create"]).arg(at(b"sub")));
    fs::write(at(b"sub/old\nname"), vec![1; 9000]).expect("a file");
    succeed(varve(&["snapshot", "--read-only"]).arg(at(b"sub")).arg(at(b"before")));
    for name in ODD {
        fs::write(at(b"sub").join(OsStr::from_bytes(name)), vec![2; 9000]).expect("a file");
    }
    fs::rename(at(b"sub/old\nname"), at(b"sub/new\\name")).expect("a rename");
    let differs = json(varve(&["diff", "--json"]).arg(at(b"before")).arg(at(b"sub")));
    let mut expected = odd.clone();
    // Of the root only the times differ.
    expected.extend([b"new\\name".to_vec(), Vec::new()]);
    assert_eq!(paths(&differs, "path"), expected);
    assert_eq!(paths(&differs, "old_path"), [b"old\nname".to_vec()].into());
    let text = succeed(varve(&["diff"]).arg(at(b"before")).arg(at(b"sub")));
    is_plain(&text);
    assert_eq!(text.lines().count(), ODD.len() + 1, "{text}");
    assert_eq!(text.matches(" -> /").count(), 1, "{text}");
    assert!(text.lines().any(|line| line == "R /old\\nname -> /new\\\\name"), "{text}");
    for name in ODD {
        let path = at(b"sub").join(OsStr::from_bytes(name));
        let map = json(varve(&["extents", "--json"]).arg(&path));
        assert_eq!(unescape(map["path"].as_str().expect("a path")), path.as_os_str().as_bytes());
    }
    mount.sync();
    mount.unmount();

    for name in ODD {
        let inside = joined(&[OsStr::new("/sub/"), OsStr::from_bytes(name)]);
        let place = joined(&[pool.as_os_str(), OsStr::new(":"), &inside]);
        let map = json(varve(&["extents", "--json"]).arg(&place));
        assert_eq!(unescape(map["path"].as_str().expect("a path")), place.as_bytes());
        let seen = json(varve(&["inspect", "--json"]).arg(&pool).arg("path").arg(&inside));
        assert_eq!(unescape(seen["path"].as_str().expect("a path")), inside.as_bytes());
        assert_eq!(seen["inode"], map["inode"]);
        is_plain(&succeed(varve(&["inspect"]).arg(&pool).arg("path").arg(&inside)));
        let missing = joined(&[&inside, OsStr::new("\n.")]);
        let out = output(varve(&["inspect"]).arg(&pool).arg("path").arg(&missing));
        let said = String::from_utf8(out.stderr).expect("text");
        is_plain(&said);
        assert_eq!((out.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    }
    let tree = json(varve(&["inspect", "--json"]).arg(&pool).args(["tree", "names"]));
    assert!(paths(&tree["entries"], "name").is_superset(&odd));
    check(&pool);
}

/// Goal: a pool whose own name is odd is named in one line by every command. Method: such a pool, whole, damaged and missing.
#[test]
fn a_pool_with_an_odd_name() {
    let scratch = Scratch::new("names-pool");
    let good = scratch.pool("good.img", "64M");
    for name in [&b"pool\nvarve check: all is well"[..], b"pool\xff\x1b[2J"] {
        let pool = scratch.path("dir").with_file_name(OsStr::from_bytes(name));
        let missing = pool.with_extension("none");
        let damaged = pool.with_extension("damaged");
        fs::copy(&good, &pool).expect("a copy");
        fs::write(&damaged, vec![7; 1 << 20]).expect("a file");
        let place = |pool: &Path| joined(&[pool.as_os_str(), OsStr::new(":/file")]);
        let report = json(varve(&["check", "--json"]).arg(&pool));
        assert_eq!(unescape(report["pool"].as_str().expect("a name")), pool.as_os_str().as_bytes());
        let text = succeed(varve(&["check"]).arg(&pool));
        is_plain(&text);
        assert_eq!(text.lines().count(), 1, "{text}");
        let stats = json(varve(&["stats", "--json"]).arg(&pool));
        for name in [&stats["pool"], &stats["devices"][0]["path"]] {
            assert_eq!(unescape(name.as_str().expect("a name")), pool.as_os_str().as_bytes());
        }
        is_plain(&succeed(varve(&["stats"]).arg(&pool)));
        if can_mount("a_pool_with_an_odd_name") {
            // Who names the pool means the mount.
            let mount = Mount::start(&pool, &scratch.path("mnt"));
            let stats = json(varve(&["stats", "--json"]).arg(&pool));
            assert_eq!(
                stats["mountpoint"].as_str(),
                mount.path("").to_str().map(|path| path.trim_end_matches('/'))
            );
            succeed(varve(&["mount", "-o", "remount,ro"]).arg(&pool).arg(mount.path("")));
            let refused = output(varve(&["check"]).arg(&pool));
            let said = String::from_utf8(refused.stderr).expect("text");
            assert!(said.contains("it is mounted at"), "{said}");
            is_plain(&said);
            mount.unmount();
        }
        for pool in [&missing, &damaged] {
            for mut command in [
                varve(&["check"]),
                varve(&["stats"]),
                varve(&["inspect"]),
                varve(&["subvolume", "list"]),
                varve(&["create"]),
                varve(&["extents"]),
                varve(&["export"]),
            ] {
                let verb = command.get_args().next().expect("a verb").to_owned();
                match verb.to_str() {
                    Some("extents") => command.arg(place(pool)),
                    Some("export") => command.arg(place(pool)).arg(scratch.path("out")),
                    _ => command.arg(pool),
                };
                let out = output(&mut command);
                let said = String::from_utf8(out.stderr).expect("text");
                is_plain(&said);
                assert_eq!((out.status.code(), said.lines().count()), (Some(1), 1), "{verb:?}: {said}");
            }
        }
    }
}
