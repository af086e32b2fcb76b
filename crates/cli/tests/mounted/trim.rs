//! Free space that goes back to the filesystem that a pool's file lies in.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Mount, Random, Scratch, can_mount, check, output, program, say, succeed, varve};

const MIB: u64 = 1 << 20;
/// Longer than the reaper takes for a few files on any machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn used(pool: &Path) -> u64 {
    fs::metadata(pool).expect("a pool").blocks() * 512
}

fn trim(path: &Path) -> Value {
    serde_json::from_str(&succeed(varve(&["trim", "--json"]).arg(path))).expect("JSON")
}

/// Deletes a file, and waits until nothing of it is left.
fn delete(mount: &Mount, name: &str) {
    fs::remove_file(mount.path(name)).expect("a file");
    mount.wait_reaped(PATIENCE);
}

/// Goal: what is deleted takes no space in the pool's file any more, by `varve trim` of a mount and of a pool that is not
/// mounted, and by fstrim(8); what is there stays. Method: 24 MiB deleted for each, `st_blocks` of the pool's file, and the
/// file beside them compared.
#[test]
fn deleted_files_take_no_space_below() {
    if !can_mount("deleted_files_take_no_space_below") {
        return;
    }
    let scratch = Scratch::new("trim");
    let pool = scratch.pool("pool", "256M");
    let point = scratch.path("mnt");
    let mut random = Random::new(7);
    let mount = Mount::start(&pool, &point);
    let kept = random.bytes(8 << 20);
    for name in ["by-varve", "kept", "by-fstrim", "offline"] {
        let bytes = if name == "kept" { kept.clone() } else { random.bytes(24 << 20) };
        fs::write(mount.path(name), bytes).expect("there is room");
    }
    mount.sync();
    let full = used(&pool);
    assert!(full >= 80 * MIB, "{full}");

    delete(&mount, "by-varve");
    let said = trim(&mount.path("kept"));
    assert_eq!((&said["finished"], &said["supported"]), (&Value::Bool(true), &Value::Bool(true)), "{said}");
    let first = used(&pool);
    assert!(first + 23 * MIB < full, "{full} bytes, then {first}: {said}");

    delete(&mount, "by-fstrim");
    let mut fstrim = program("fstrim", &scratch.path(""), &["--verbose"]);
    let second =
        if Command::new("fstrim").arg("--version").output().is_ok() && rustix::process::geteuid().is_root() {
            let said = succeed(fstrim.arg(&point));
            assert!(said.contains("trimmed"), "{said}");
            let tried = output(Command::new("fstrim").args(["--offset", "1T"]).arg(&point));
            assert!(!tried.status.success(), "there is nothing there");
            used(&pool)
        } else {
            say("fstrim is not tried: it is not here, or this is not root");
            trim(&point);
            used(&pool)
        };
    assert!(second + 23 * MIB < first, "{first} bytes, then {second}");

    delete(&mount, "offline");
    assert!(fs::read(mount.path("kept")).expect("a file") == kept);
    mount.unmount();
    let said = trim(&pool);
    assert_eq!(said["mountpoint"], Value::Null);
    let third = used(&pool);
    assert!(third + 23 * MIB < second, "{second} bytes, then {third}: {said}");
    check(&pool);
    let mount = Mount::start(&pool, &point);
    assert!(fs::read(mount.path("kept")).expect("a file") == kept);
    let shown = succeed(varve(&["trim", "--minimum", "1M"]).arg(&point));
    assert!(shown.contains("given back"), "{shown}");
    mount.unmount();
}

/// Goal: a pool that is open for reading gives nothing back and says why, and so does something that is no pool. Method: a
/// read-only mount, a text.
#[test]
fn what_cannot_be_trimmed_says_why() {
    let scratch = Scratch::new("trim-refused");
    let text = scratch.path("text");
    fs::write(&text, "no pool").expect("a file");
    let tried = output(varve(&["trim"]).arg(&text));
    let said = String::from_utf8_lossy(&tried.stderr).into_owned();
    assert!(tried.status.code() == Some(1) && said.contains("varve trim: "), "{said}");
    if !can_mount("what_cannot_be_trimmed_says_why") {
        return;
    }
    let pool = scratch.pool("pool", "64M");
    let mount = Mount::start_with(&pool, &scratch.path("mnt"), &["-o", "ro"]);
    let tried = output(varve(&["trim"]).arg(&mount.point));
    let said = String::from_utf8_lossy(&tried.stderr).into_owned();
    assert!(tried.status.code() == Some(1) && said.contains("read-only"), "{said}");
    mount.unmount();
}
