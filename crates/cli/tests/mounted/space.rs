//! `varve subvolume delete --wait`: the space of what was deleted is free when it returns.

use std::fs;

use crate::harness::*;

/// Goal: who deletes snapshots until there is space enough deletes no more than that takes: all space of one is free when the command
/// returns, and it says so. Method: 200 MiB that one snapshot alone holds, which was written in pieces; free space as df shows it, just
/// before and after; a path that is no subvolume beside it; and the deletion is durable.
#[test]
fn space_is_free_when_it_returns() {
    if !can_mount("space_is_free_when_it_returns") {
        return;
    }
    const MIB: usize = 1 << 20;
    let scratch = Scratch::new("delete-wait");
    let pool = scratch.pool("pool", "1G");
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    succeed(varve(&["subvolume", "create"]).arg(mount.path("work")));
    for number in 0..200 {
        fs::write(mount.path(&format!("work/{number}")), Random::new(number).bytes(MIB)).expect("room");
    }
    succeed(varve(&["snapshot", "--read-only"]).arg(mount.path("work")).arg(mount.path("old")));
    for number in 0..200 {
        fs::remove_file(mount.path(&format!("work/{number}"))).expect("it is there");
    }
    mount.wait_reaped(COMMAND_LIMIT);
    let free = || {
        let space = rustix::fs::statvfs(&mount.point).expect("it answers");
        space.f_bavail * space.f_frsize
    };
    let before = free();
    let mut command = varve(&["subvolume", "delete", "--wait", "--json"]);
    let out = output(command.arg(mount.path("old")).arg(mount.path("work/none")));
    let after = free();
    assert!(after > before + 199 * MIB as u64, "{before} bytes were free, and then {after}");
    let said: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(said["deleted"], serde_json::json!([mount.path("old")]), "{said}");
    assert_eq!(said["space_free"], true, "{said}");
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(1) && errors.contains("work/none"), "{errors}");
    mount.kill();
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    assert!(!mount.path("old").exists());
    mount.unmount();
    check(&pool);
}
