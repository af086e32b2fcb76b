//! `varve lab`: runs an experiment of the lab and shows its report.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use varve_lab::target::TargetKind;
use varve_lab::{Medium, Options, Report, Scale, output};
use varve_mount::RingSwitch;

use crate::names::Shown;
use crate::{Outcome, Usage, show};

/// The experiments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Experiment {
    /// Small files, each synced, from many threads: files/s, flushes, writes and bytes per file
    Commit,
    /// Random overwrites, then a snapshot or clone, again and again: space, bytes, time of each; then all are deleted
    Aging,
    /// Round trips through FUSE to a filesystem that does nothing, beside VarveFS
    Floor,
    /// One large file written, synced and read back in 1 MiB calls, buffered and direct
    Large,
}

/// Rerun a classic experiment on VarveFS, ext4, XFS and btrfs, side by side.
///
/// The lab makes disks of equal size (loop devices, as root; else files), runs every target on one, counts at the block
/// layer what each costs, and removes everything again. What cannot be run here is left out, with what would help.
#[derive(Args, Debug)]
pub struct LabArgs {
    /// Which experiment
    pub experiment: Experiment,
    /// Run on this only; may be repeated: varve, varve-mounted, ext4, xfs, btrfs, bare, or a directory (a path with a /).
    /// aging has no ext4 and no bare, and directories only where files can be cloned; large has no varve and no bare;
    /// floor has no targets
    #[arg(long, value_name = "TARGET")]
    pub on: Vec<TargetKind>,
    /// How much: small (about a minute) or seed (as published)
    #[arg(long, default_value = "small")]
    pub scale: Scale,
    /// Rounds of `aging`, instead of those of the scale (60, 1000)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub loops: Option<u32>,
    /// Days of the rotation of snapshots in `aging`: one an hour, 24 hourly, 7 daily and 4 weekly kept; 0 leaves it out
    /// [default: 30, or as many as --loops if that is less]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=3650))]
    pub days: Option<u32>,
    /// Have mounts take requests through rings (-o rings, FUSE over io_uring; as root)
    #[arg(long)]
    pub rings: bool,
    /// Write the report with every single measurement as JSON (- for standard output)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the report as one HTML page with plots
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Keep the files behind the disks in this directory while it runs [default: that for temporary files]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &LabArgs) -> Result<Outcome> {
    varve_lab::guard::catch_interrupts().context("cannot listen for interrupts")?;
    // What would be found at the end of a long run, or never, is found before it.
    for target in &args.on {
        if let TargetKind::Directory(path) = target
            && !path.is_dir()
        {
            let path = path.shown();
            return Err(Usage(format!(
                "there is no directory {path} to run on; make it first: mkdir {path}"
            ))
            .into());
        }
    }
    let unfit = |target| match args.experiment {
        Experiment::Commit => None,
        Experiment::Aging => varve_lab::aging::unfit(target),
        Experiment::Floor => Some(varve_lab::floor::NO_TARGETS.to_owned()),
        Experiment::Large => varve_lab::large::unfit(target),
    };
    if let Some(why) = args.on.iter().find_map(unfit) {
        return Err(Usage(why).into());
    }
    if args.loops.is_some() && args.experiment != Experiment::Aging {
        return Err(Usage("--loops is for the experiment aging; leave it away".to_owned()).into());
    }
    if args.days.is_some() && args.experiment != Experiment::Aging {
        return Err(Usage("--days is for the experiment aging; leave it away".to_owned()).into());
    }
    for file in [&args.json, &args.html].into_iter().flatten().filter(|file| *file != Path::new("-")) {
        require_writable(file)?;
    }
    if args.rings {
        // Rather no run than one without.
        drop(RingSwitch::on()?);
    }
    let words: Vec<_> = std::env::args_os().map(|word| word.shown()).collect();
    let options = Options {
        targets: args.on.clone(),
        scale: args.scale,
        loops: args.loops.map(|loops| loops as usize),
        days: args.days.map(u64::from),
        rings: args.rings,
        medium: Medium::best(),
        directory: args.dir.clone(),
        program: std::env::current_exe().ok(),
        command: words.join(" "),
        progress: true,
    };
    let report: Report = match args.experiment {
        Experiment::Commit => varve_lab::commit::run(&options)?,
        Experiment::Aging => varve_lab::aging::run(&options)?,
        Experiment::Floor => varve_lab::floor::run(&options)?,
        Experiment::Large => varve_lab::large::run(&options)?,
    };
    let json_on_output = args.json.as_deref() == Some(Path::new("-"));
    if !json_on_output {
        show(&output::text(&report))?;
    }
    if let Some(file) = &args.json {
        let json = output::json(&report)?;
        if json_on_output { show(&json)? } else { write(file, &json)? }
    }
    if let Some(file) = &args.html {
        write(file, &output::page(&report))?;
    }
    Ok(Outcome::Done)
}

/// Whether a report can be written later; what is in the file stays until then.
fn require_writable(file: &Path) -> Result<()> {
    let there = std::fs::metadata(file).ok();
    if let Some(there) = &there {
        require_fit(file, there)?;
    }
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)
        .with_context(|| format!("cannot write the report to {}; nothing was run", file.shown()))?;
    if there.is_none() {
        // It would be taken for a report if the run ended early. If it stays it is written over.
        let _ = std::fs::remove_file(file);
    }
    Ok(())
}

/// Refuses what a report cannot be written to at the end. To open a pipe is to wait for somebody at its other end, for good and through every
/// interrupt, and whoever is there now takes this look at it for all there is. One that this process has open (/dev/stdout, or what a shell
/// makes of `>(...)`) waits for nobody.
fn require_fit(file: &Path, there: &Metadata) -> Result<()> {
    let kind = there.file_type();
    let why = if kind.is_fifo() && !is_open_here(there) {
        "is a named pipe"
    } else if kind.is_block_device() {
        "is a block device"
    } else {
        return Ok(());
    };
    let file = file.shown();
    Err(Usage(format!("{file} {why}; give a regular file for the report, or - with --json; nothing was run"))
        .into())
}

/// Whether one of the descriptors of this process leads there.
fn is_open_here(there: &Metadata) -> bool {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    open.filter_map(|fd| std::fs::metadata(fd.path()).ok())
        .any(|open| (open.dev(), open.ino()) == (there.dev(), there.ino()))
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.shown()))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::fs::{CWD, FileType, Mode, OFlags};

    use super::*;

    // Goal: what a report cannot be written to is refused at once, and nothing else is. Method: a pipe with nobody and with somebody at its other
    // end, by threads that may hang; a directory; a file that is new and one that is not, what discards all, and a pipe
    // that this process has open.
    #[test]
    fn reports_go_where_they_can_be_written() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        let look = |path: PathBuf| {
            let (answer, answered) = mpsc::channel();
            std::thread::spawn(move || {
                answer.send(require_writable(&path).map_err(|error| error.to_string()))
            });
            answered.recv_timeout(Duration::from_secs(20)).expect("it waits for nobody")
        };
        let refused = |path: PathBuf, why: &str| {
            let said = look(path).expect_err("no report can be written there");
            assert!(said.contains(why) && said.contains("nothing was run"), "{said}");
        };
        rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        refused(at("pipe"), "named pipe");
        // Another process has it open, as a reader that goes on when nobody writes.
        let end =
            rustix::fs::open(at("pipe"), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).expect("a reader");
        let mut reader = std::process::Command::new("sleep").arg("60").stdin(end).spawn().expect("a reader");
        refused(at("pipe"), "named pipe");
        reader.kill().and_then(|()| reader.wait()).expect("it sleeps");
        refused(directory.path().to_path_buf(), "cannot write");

        assert_eq!(look(at("new.json")), Ok(()));
        assert!(!at("new.json").exists(), "it is no report");
        std::fs::write(at("old.json"), "older").expect("a file");
        assert_eq!(look(at("old.json")), Ok(()));
        assert_eq!(std::fs::read(at("old.json")).expect("it is there"), b"older");
        assert_eq!(look(PathBuf::from("/dev/null")), Ok(()));
        let (_reader, writer) = std::io::pipe().expect("a pipe");
        assert_eq!(look(PathBuf::from(format!("/dev/fd/{}", writer.as_raw_fd()))), Ok(()));
    }
}
