//! The commands of docs/backup.md.

use std::fs;

use crate::harness::{Mount, Random, Scratch, can_mount, output, program, say, succeed, varve};

const PAGE: &str = include_str!("../../../../docs/backup.md");

/// Goal: the commands of the page do what it says, and copy nothing from a snapshot that was left behind. Method: its blocks as they stand, on a
/// subvolume with another inside; the first once more with the snapshot in the way; the rotation where two of four snapshots have to go.
#[test]
fn the_commands_of_the_page_run() {
    if !can_mount("the_commands_of_the_page_run") {
        return;
    }
    let scratch = Scratch::new("backup");
    let dir = scratch.path("");
    let found = output(&mut program("bash", &dir, &["-c", "command -v rsync && command -v tar"]));
    if !found.status.success() {
        say("*** SKIPPED the_commands_of_the_page_run: rsync or tar is not here ***");
        return;
    }
    let blocks: Vec<&str> =
        PAGE.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let [snapshot, rotation, leave_out] = blocks[..] else { panic!("other blocks: {blocks:?}") };
    let bin = std::path::PathBuf::from(varve(&[]).get_program());
    let path = format!("{}:{}", bin.parent().unwrap().display(), std::env::var("PATH").unwrap_or_default());
    let run = |script: &str| output(program("bash", &dir, &["-c", script]).env("PATH", &path));
    let mount = Mount::start(&scratch.pool("pool", "256M"), &scratch.path("mnt"));
    for subvolume in ["work", "work/db"] {
        succeed(varve(&["subvolume", "create"]).arg(mount.path(subvolume)));
        fs::write(mount.path(subvolume).join("file"), subvolume).expect("a file");
    }
    let out = run(snapshot);
    assert!(out.status.success(), "{out:?}");
    let copy = scratch.path("DEST/file");
    assert_eq!(fs::read(&copy).expect("it was copied"), b"work");
    assert!(!scratch.path("DEST/db").exists() && !mount.path("backup").exists());

    succeed(varve(&["snapshot", "--read-only"]).args([mount.path("work"), mount.path("backup")]));
    fs::remove_file(&copy).expect("our own copy");
    assert!(!run(snapshot).status.success() && !copy.exists());

    fs::create_dir(mount.path("snapshots")).expect("a directory");
    fs::rename(mount.path("backup"), mount.path("snapshots/backup")).expect("another name");
    let out = run(&format!("set -e; {leave_out}"));
    assert!(out.status.success(), "{out:?}");
    assert!(!String::from_utf8_lossy(&out.stdout).contains("snapshots"), "{out:?}");
    let listed = succeed(&mut program("tar", &dir, &["-tf", "DEST.tar"]));
    assert!(listed.contains("work/db/file") && !listed.contains("snapshots"), "{listed}");
    assert!(scratch.path("DEST/work/db/file").exists() && !scratch.path("DEST/snapshots").exists());

    // Each holds 20 MiB alone, and two are wanted: "backup" is the newest by its name.
    for day in 0..5 {
        let file = mount.path("work/large");
        fs::write(&file, Random::new(day).bytes(20 << 20)).expect("room");
        succeed(
            varve(&["snapshot"]).arg(mount.path("work")).arg(mount.path(&format!("snapshots/2026-11-{day}"))),
        );
        fs::remove_file(&file).expect("it is there");
    }
    succeed(varve(&["subvolume", "delete", "--wait"]).arg(mount.path("snapshots/2026-11-0")));
    let space = rustix::fs::statvfs(&mount.point).expect("it answers");
    let wanted = space.f_bavail * space.f_frsize + (30 << 20);
    let out = run(&rotation.replace("$((100 << 30))", &wanted.to_string()));
    assert!(out.status.success(), "{out:?}");
    let left = fs::read_dir(mount.path("snapshots")).expect("a directory");
    let mut left: Vec<_> = left.map(|entry| entry.expect("an entry").file_name()).collect();
    left.sort();
    assert_eq!(left, ["2026-11-3", "2026-11-4", "backup"]);
    mount.unmount();
}
