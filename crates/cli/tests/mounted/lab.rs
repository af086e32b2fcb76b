//! The lab as somebody has it who stops it.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::*;

/// Goal: what the lab has made goes when it is told to end, however often it is told: timeout(1) and service managers send
/// the signal to the process and then to its whole group. Method: two SIGTERM, one soon after the other, in the middle of its loops; nothing
/// stays in its directory, neither files nor devices over them.
#[test]
fn a_lab_that_is_told_to_end_removes_what_it_made() {
    if !can_loop("a_lab_that_is_told_to_end_removes_what_it_made") {
        return;
    }
    let scratch = Scratch::new("lab-ended");
    let place = scratch.subdir("disks");
    // Its loops take longer than what lies between the two.
    let mut command = varve(&["lab", "aging", "--on", "varve", "--scale", "small", "--days", "0", "--dir"]);
    let mut lab = command.arg(&place).stderr(Stdio::piped()).spawn().expect("the lab starts");
    let said = BufReader::new(lab.stderr.take().expect("it is a pipe"));
    let mut lines = said.lines().map_while(Result::ok).inspect(|line| say(line));
    let looping = lines.any(|line| line.contains("loop 0 of"));
    let pid = Pid::from_child(&lab);
    for _ in 0..2 {
        kill_process(pid, Signal::TERM).expect("it runs");
        // Two that wait to be delivered are one.
        sleep(Duration::from_millis(3));
    }
    let last = lines.last();
    let status = lab.wait().expect("it ends");
    assert!(looping && status.code().is_some_and(|code| code != 0), "{status} after {last:?}");
    assert!(last.is_some_and(|line| line.contains("interrupted")), "it says why it ended");
    let stays: Vec<_> = place.read_dir().expect("the directory is there").collect();
    assert!(stays.is_empty(), "{stays:?} stays");
    let devices = succeed(std::process::Command::new("losetup").args([
        "--list",
        "--noheadings",
        "--output",
        "BACK-FILE",
    ]));
    assert!(!devices.contains(&*place.to_string_lossy()), "a device stays: {devices}");
}

/// Goal: a run that nobody listens to any more goes on and gives its report. Method: standard error is a pipe that nobody reads.
#[test]
fn a_lab_that_nobody_listens_to_reports() {
    let scratch = Scratch::new("lab-unheard");
    let (place, report) = (scratch.subdir("disks"), scratch.path("report.json"));
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = varve(&["lab", "commit", "--scale", "tiny", "--on", "bare", "--dir"]);
    command.arg(&place).arg("--json").arg(&report).stdout(Stdio::null()).stderr(writer);
    let status = command.status().expect("it starts");
    assert!(status.success(), "{status}");
    let report = std::fs::read(report).expect("a report");
    assert!(serde_json::from_slice::<serde_json::Value>(&report).expect("JSON").is_object());
    assert_eq!(place.read_dir().expect("the directory is there").count(), 0, "something stays");
}
