//! Every experiment, tiny: so that none of them can rot. What needs root, loop devices or FUSE is left out with a loud line.

use varve_lab::report::Report;
use varve_lab::target::TargetKind;
use varve_lab::{Medium, Options, Scale, aging, commit, disk, floor, large, output};

fn options(medium: Medium, targets: Vec<TargetKind>) -> Options {
    Options {
        targets,
        scale: Scale::Tiny,
        loops: None,
        days: None,
        medium,
        directory: None,
        program: None,
        command: "a test".to_owned(),
        rings: false,
        progress: false,
    }
}

/// Every form of a report holds what it must name.
fn look_at(report: &Report) {
    let json = output::json(report).expect("a report is JSON");
    let parsed: serde_json::Value = serde_json::from_str(&json).expect("JSON parses");
    assert_eq!(parsed["experiment"], report.experiment);
    assert!(parsed["provenance"]["commit"].as_str().is_some_and(|commit| !commit.is_empty()));
    let text = output::text(report);
    let page = output::page(report);
    for wanted in [&report.provenance.kernel, &report.provenance.machine, &report.tables[0].title] {
        assert!(text.contains(wanted.as_str()), "{wanted} is not in\n{text}");
    }
    assert!(page.contains("<svg") && page.contains("a test"), "{page}");
    for foreign in ["http://", "https://", "src=", "NaN"] {
        assert!(!page.contains(foreign), "the page holds {foreign}");
    }
    for table in &report.tables {
        assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{table:?}");
    }
}

// Goal: commit runs from end to end without root, and measures what it says. Method: in memory and on files; each thread
// has made a file, and everything that needs a kernel filesystem is named as not run.
#[test]
fn commit_without_root() {
    for medium in [Medium::Memory, Medium::File] {
        let report = commit::run(&options(medium, Vec::new())).expect("it runs everywhere");
        look_at(&report);
        let ran: Vec<&str> = report.targets.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(ran, ["varve", "bare"], "{medium:?}");
        assert_eq!(report.skipped.len(), 4, "{medium:?}");
        let samples = report.data["samples"].as_array().expect("samples are a list");
        assert_eq!(samples.len(), 2 * 3);
        for sample in samples {
            assert!(sample["files_count"].as_u64() >= sample["threads"].as_u64(), "{sample}");
            assert!(sample["during"].is_null(), "there is nothing to count: {sample}");
        }
        assert_eq!(report.data["pairs"].as_array().map(Vec::len), Some(3));
        let ceiling = report.ceiling.expect("the disk is measured");
        assert!(ceiling.flushed_writes_per_s > 0.0 && ceiling.sequential_mib_per_s > 0.0);
    }
}

// Goal: what is named twice is run once. Method: each experiment that has targets, on files, by the same name and by two names of a directory.
#[test]
fn what_is_named_twice_is_run_once() {
    let (given, names) =
        (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let link = names.path().join("link");
    std::os::unix::fs::symlink(given.path(), &link).expect("a link");
    let (one, other) = (TargetKind::Directory(given.path().to_path_buf()), TargetKind::Directory(link));
    let ran = |report: &Report| report.targets.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let targets = vec![TargetKind::Bare, one.clone(), TargetKind::Bare, other.clone()];
    let report = commit::run(&options(Medium::File, targets)).expect("it runs everywhere");
    assert_eq!(ran(&report), ["bare".to_owned(), one.name()]);
    let report = large::run(&options(Medium::File, vec![other.clone(), one.clone()]));
    assert_eq!(ran(&report.expect("it runs everywhere")), [other.name()]);
    let in_process = TargetKind::VarveInProcess;
    let report = aging::run(&options(Medium::File, vec![in_process.clone(), in_process]));
    assert_eq!(ran(&report.expect("it runs everywhere")), ["varve snapshot", "varve clone"]);
}

// Goal: a directory can be a target, and nothing stays in it. Method: run on one, list it afterwards.
#[test]
fn commit_in_a_directory() {
    let given = tempfile::tempdir().expect("a directory");
    let kind = TargetKind::Directory(given.path().to_path_buf());
    let report = commit::run(&options(Medium::Memory, vec![kind])).expect("it runs everywhere");
    look_at(&report);
    assert_eq!(report.targets.len(), 1);
    assert_eq!(given.path().read_dir().expect("it is there").count(), 0);
}

// Goal: on loop devices everything is counted at the block layer: one write and one flush a file for the bare protocol, at
// least one flush a file for every filesystem with one thread; afterwards no file is left. Method: all targets there are.
#[test]
fn commit_on_loop_devices() {
    if let Some(missing) = disk::loop_devices_missing() {
        eprintln!("SKIPPED commit_on_loop_devices: {missing}");
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let report = commit::run_in(&options(Medium::Loop, Vec::new()), place.path()).expect("root can run it");
    for (name, why) in &report.skipped {
        eprintln!("SKIPPED {name} of commit_on_loop_devices: {why}");
    }
    look_at(&report);
    assert!(report.targets.len() >= 2);
    for sample in report.data["samples"].as_array().expect("samples are a list") {
        if sample["threads"] != 1 {
            continue;
        }
        let files = sample["files_count"].as_u64().expect("a number");
        let during = &sample["during"];
        let flushes = during["flushes_count"].as_u64().expect("the block layer counts");
        assert!(flushes >= files, "a file was called durable without a flush: {sample}");
        if sample["target"] == "bare" {
            assert_eq!(flushes, files, "{sample}");
            assert_eq!(during["written_bytes"].as_u64(), Some(files * (16 << 10)), "{sample}");
        }
    }
    assert_eq!(place.path().read_dir().expect("it is there").count(), 0);
}

// Goal: the floor runs from end to end and both mounts go away again. Method: tiny, then list the place of the mounts.
#[test]
fn floor_runs() {
    if let Some(missing) = floor::missing() {
        eprintln!("SKIPPED floor_runs: {missing}");
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let mut options = options(Medium::Memory, Vec::new());
    options.directory = Some(place.path().to_path_buf());
    let report = floor::run(&options).expect("FUSE is there");
    look_at(&report);
    let places = report.tables.len();
    assert!((1..=2).contains(&places), "one processor, and two if there are two");
    assert_eq!(report.data["rounds"].as_array().map(Vec::len), Some(places * 6));
    assert!(report.claims.iter().all(|claim| claim.holds.is_some()));
    assert_eq!(place.path().read_dir().expect("it is there").count(), 0);
}

// Goal: large files run without root, in a directory, and what cannot be called is left out. Method: buffered and direct on
// a directory; a rate for each, and nothing stays.
#[test]
fn large_in_a_directory() {
    let given = tempfile::tempdir().expect("a directory");
    let kinds = vec![TargetKind::Directory(given.path().to_path_buf()), TargetKind::Bare];
    let report = large::run(&options(Medium::Memory, kinds)).expect("it runs everywhere");
    look_at(&report);
    assert_eq!((report.targets.len(), report.skipped.len()), (1, 1));
    let samples = report.data["samples"].as_array().expect("samples are a list");
    assert_eq!(samples.len(), 2 * 2);
    for sample in samples {
        let rate = |name: &str| sample[name].as_f64().expect("a rate");
        assert!(rate("write_mib_per_s") > 0.0 && rate("read_mib_per_s") > 0.0, "{sample}");
    }
    assert_eq!(given.path().read_dir().expect("it is there").count(), 0);
}

// Goal: on loop devices every byte of the file reaches the disk before fsync returns, once. Method: the kernel's
// filesystems there are; what the block layer has counted against the size of the file.
#[test]
fn large_on_loop_devices() {
    if let Some(missing) = disk::loop_devices_missing() {
        eprintln!("SKIPPED large_on_loop_devices: {missing}");
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let mut options = options(Medium::Loop, Vec::new());
    options.directory = Some(place.path().to_path_buf());
    let report = large::run(&options).expect("root can run it");
    for (name, why) in &report.skipped {
        eprintln!("SKIPPED {name} of large_on_loop_devices: {why}");
    }
    look_at(&report);
    for sample in report.data["samples"].as_array().expect("samples are a list") {
        let written = sample["written"]["written_bytes"].as_u64().expect("the block layer counts");
        assert!((4 << 20..8 << 20).contains(&written), "{sample}");
    }
    assert_eq!(place.path().read_dir().expect("it is there").count(), 0);
}

/// What every target of `aging` must show, whatever it is.
fn aged(report: &Report) {
    look_at(report);
    for figures in report.data["figures"].as_array().expect("a list") {
        assert!(figures["stopped"].is_null(), "{figures}");
        let loops = figures["loops"].as_array().expect("loops");
        assert_eq!(loops.len(), 5);
        // The file is set aside before the first loop: a fork keeps that, and every block written is new.
        let used = |one: &serde_json::Value| one["used_bytes"].as_u64().expect("bytes");
        assert!(used(&loops[4]) > used(&loops[0]), "forks share what was overwritten: {figures}");
        assert!(loops.iter().all(|one| one["fork_ns"].as_u64() > Some(0)));
    }
}

/// Every target lived through its days, deleted what it was to delete, and got the space of that back.
fn lived(report: &Report, days: u64) {
    let months = report.data["months"].as_array().expect("a list");
    assert_eq!(months.len(), report.targets.len());
    for month in months {
        assert!(month["stopped"].is_null(), "{month}");
        let hours = month["hours"].as_array().expect("hours");
        assert_eq!((hours.len() as u64, month["kept_most"].as_u64()), (days * 24, Some(25)), "{month}");
        let ours = month["name"].as_str().is_some_and(|name| name.starts_with("varve"));
        assert!(hours.iter().all(|hour| hour["backlog"].is_u64() == ours), "{month}");
        // Forks hold what is overwritten; when they are gone, most of that is free.
        let bytes = |name: &str| month[name].as_u64().expect("bytes");
        let most = hours.iter().filter_map(|hour| hour["used_bytes"].as_u64()).max().expect("bytes");
        assert_eq!(bytes("written_bytes"), days * 24 * 4 * 4096);
        assert!(most >= bytes("used_before_bytes") + 20 * 4 * 4096, "{month}");
        assert!(bytes("used_after_bytes") < most, "{month}");
        assert!(month["delete"]["p99_ns"].as_f64() > Some(0.0), "{month}");
        assert!(month["device"].is_null() || month["device"]["written_bytes"].as_u64() > Some(0), "{month}");
    }
}

/// Snapshots came and went, and in the end what is stored is what was stored before the first.
fn rotated(month: &serde_json::Value) {
    let tree = |when: &str, name: &str| month[when]["trees"][name].as_u64();
    for name in ["extents", "inodes", "names", "xattrs", "subvolumes", "reap"] {
        assert_eq!(tree("before", name), tree("after", name), "{name}: {month}");
    }
    assert_eq!(month["before"]["files_count"], month["after"]["files_count"], "{month}");
    // Leaves were filled one after the other; what comes and goes in between leaves room in them.
    let nodes = |when: &str| month[when]["nodes_count"].as_f64().expect("nodes");
    assert!(nodes("after") <= nodes("before") * 4.0, "{month}");
    // How far deleting fell behind was noted every hour. How far that may be is no matter of a test: the hours pass in
    // milliseconds, and where other tests keep the processors busy the reaper gets none of them.
    let backlog = month["backlog"].as_array().expect("hours");
    assert_eq!(backlog.len(), 240);
    assert!(backlog.iter().all(serde_json::Value::is_u64), "{month}");
}

// Goal: aging runs from end to end without root, on VarveFS with snapshots and with clones; what was only in forks is
// free again after they are deleted, but for what the file's own overwritten blocks need in the trees. Method: in memory.
#[test]
fn aging_without_root() {
    let report = aging::run(&options(Medium::Memory, Vec::new())).expect("it runs everywhere");
    aged(&report);
    let ran: Vec<&str> = report.targets.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(ran, ["varve snapshot", "varve clone"]);
    lived(&report, 2);
    for figures in report.data["figures"].as_array().expect("a list") {
        let bytes = |name: &str| figures[name].as_u64().expect("bytes");
        let written = 5 * 100 * 4096;
        let left = bytes("used_after_bytes").saturating_sub(bytes("used_before_bytes"));
        assert!(left < written / 4, "{left} bytes of {written} are left: {figures}");
    }
    rotated(&report.data["rotation"]);
}

// Goal: a single loop is enough to ask for. Method: one, where more forks are mapped when there are more.
#[test]
fn aging_for_one_loop() {
    let options = Options { loops: Some(1), days: Some(0), ..options(Medium::Memory, Vec::new()) };
    let report = aging::run(&options).expect("it runs everywhere");
    look_at(&report);
    for figures in report.data["figures"].as_array().expect("a list") {
        assert!(figures["stopped"].is_null(), "{figures}");
        assert_eq!(figures["maps"].as_array().expect("maps").len(), 1);
    }
}

// Goal: beside btrfs and XFS, counted at the block layer. Method: all targets there are; each has written at least what it
// was given, and mapped the extents of forks.
#[test]
fn aging_on_loop_devices() {
    if let Some(missing) = disk::loop_devices_missing() {
        eprintln!("SKIPPED aging_on_loop_devices: {missing}");
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let mut options = options(Medium::Loop, Vec::new());
    options.directory = Some(place.path().to_path_buf());
    let report = aging::run(&options).expect("root can run it");
    for (name, why) in &report.skipped {
        eprintln!("SKIPPED {name} of aging_on_loop_devices: {why}");
    }
    aged(&report);
    lived(&report, 2);
    for figures in report.data["figures"].as_array().expect("a list") {
        let written: u64 = figures["loops"]
            .as_array()
            .expect("loops")
            .iter()
            .map(|one| one["device"]["written_bytes"].as_u64().expect("the block layer counts"))
            .sum();
        // Of 500 random blocks of 2,048 some are written twice between two syncs.
        assert!(written >= 400 * 4096, "{figures}");
        if figures["name"].as_str().is_some_and(|name| !name.starts_with("varve")) {
            let maps = figures["maps"].as_array().expect("maps");
            assert!(maps.iter().all(|map| map["extents_count"].as_u64() > Some(10)), "{maps:?}");
        }
    }
    assert_eq!(place.path().read_dir().expect("it is there").count(), 0);
}

// Goal: a directory on a filesystem that clones files ages with clones, and one on another is refused by name, as is whatever
// cannot be forked. Method: a directory of an XFS that the lab has made, and of an ext4; nothing stays in the first.
#[test]
fn aging_in_a_directory() {
    for kind in [TargetKind::Ext4, TargetKind::Bare] {
        let why = aging::unfit(&kind).expect("it has no forks");
        assert!(why.contains("varve-mounted, btrfs (snapshots), xfs (clones)"), "{why}");
        let error = aging::run(&options(Medium::Memory, vec![kind])).expect_err("it is refused");
        assert_eq!(error.to_string(), why);
    }
    assert!(floor::run(&options(Medium::Memory, vec![TargetKind::VarveInProcess])).is_err());
    let place = tempfile::tempdir().expect("a directory");
    let loops = options(Medium::Loop, Vec::new());
    for (kind, clones) in [(TargetKind::Ext4, false), (TargetKind::Xfs, true)] {
        if let Some(missing) = disk::loop_devices_missing().or_else(|| kind.missing(&loops)) {
            eprintln!("SKIPPED {} of aging_in_a_directory: {missing}", kind.name());
            continue;
        }
        let target = kind.open(&loops, place.path(), 320 << 20).expect("it is made");
        let given = target.directory().expect("it is mounted").join("given");
        std::fs::create_dir(&given).expect("a directory");
        let directory = TargetKind::Directory(given.clone());
        assert_eq!(aging::unfit(&directory).is_none(), clones, "{:?}", aging::unfit(&directory));
        if clones {
            let report = aging::run(&Options { days: Some(0), ..options(Medium::Memory, vec![directory]) });
            let report = report.expect("it can be run");
            aged(&report);
            assert_eq!(report.data["months"].as_array().map(Vec::len), Some(0));
            assert_eq!(report.data["figures"].as_array().map(Vec::len), Some(1));
        }
        assert_eq!(given.read_dir().expect("it is there").count(), 0);
        target.close().expect("nobody uses it");
    }
}
