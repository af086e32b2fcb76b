//! The other ends of `mount.fuse.varve` and `umount.fuse.varve`, which mount(8) and umount(8) run for our type.
//!
//! The command lines are libmount's, not this program's: `mount.TYPE SOURCE DIRECTORY [-sfnv] [-N NAMESPACE]
//! [-o OPTIONS] [-t TYPE]` and `umount.TYPE DIRECTORY [-nlfvr] [-N NAMESPACE] [-t TYPE]`. So are the exit statuses
//! (mount(8), "EXIT STATUS"), which mount(8) hands on.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use crate::args::MountArgs;
use crate::mountinfo::{self, MountTable};
use crate::names::Shown;
use crate::{Usage, mount, options, remount, unmount};

/// Wrong usage, and a mount or unmount that failed.
const STATUS_USAGE: u8 = 1;
const STATUS_FAILED: u8 = 32;
/// How long umount(8), which has done its work when the directory is free, waits for others that have the pool mounted.
const PATIENCE: Duration = Duration::from_secs(5);

/// The command line as libmount wrote it.
#[derive(Args, Debug)]
pub struct HelperArgs {
    /// Everything
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub words: Vec<OsString>,
}

/// A command line of libmount's, taken apart.
#[derive(Default, PartialEq, Eq, Debug)]
struct Parsed {
    paths: Vec<PathBuf>,
    options: Vec<String>,
    /// Single letters without a value.
    letters: Vec<char>,
}

impl Parsed {
    fn has(&self, letter: char) -> bool {
        self.letters.contains(&letter)
    }
}

/// `letters` are those that mean something.
fn parse(words: &[OsString], letters: &str) -> Result<Parsed> {
    let mut parsed = Parsed::default();
    let mut words = words.iter();
    let text = |word: &'_ OsStr| match word.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => bail!(Usage(format!("{} is no option: it is not UTF-8", word.shown()))),
    };
    while let Some(word) = words.next() {
        // A path may be any bytes.
        let word = match word.to_str() {
            None if !word.as_bytes().starts_with(b"-") => {
                parsed.paths.push(word.into());
                continue;
            }
            _ => text(word)?,
        };
        let Some(flags) = word.strip_prefix('-').filter(|flags| !flags.is_empty()) else {
            parsed.paths.push(word.into());
            continue;
        };
        for (at, letter) in flags.char_indices() {
            let rest = &flags[at + letter.len_utf8()..];
            if !matches!(letter, 'o' | 't' | 'N') {
                if !letters.contains(letter) {
                    bail!(Usage(format!("there is no option -{letter} for this helper of mount(8)")));
                }
                parsed.letters.push(letter);
                continue;
            }
            // Takes the rest of the word, or the next.
            let value = if rest.is_empty() {
                words.next().map(|word| text(word)).transpose()?
            } else {
                Some(rest.to_owned())
            };
            let Some(value) = value else { bail!(Usage(format!("a value is missing after -{letter}"))) };
            match letter {
                'o' => parsed.options.push(value),
                // The type, which is ours.
                't' => {}
                _ => bail!(
                    "mounting in another namespace (-N) is not possible; enter it first, with nsenter(1)"
                ),
            }
            break;
        }
    }
    Ok(parsed)
}

/// `mount.fuse.varve`.
pub fn mount(args: &HelperArgs) -> ExitCode {
    status("mount.fuse.varve", run_mount(&args.words))
}

/// `umount.fuse.varve`.
pub fn unmount(args: &HelperArgs) -> ExitCode {
    status("umount.fuse.varve", run_unmount(&args.words))
}

fn status(name: &str, result: Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    if !error.is::<mount::Reported>() {
        crate::tell(&format!("{name}: {error:#}"));
    }
    ExitCode::from(if error.is::<Usage>() { STATUS_USAGE } else { STATUS_FAILED })
}

fn run_mount(words: &[OsString]) -> Result<()> {
    let parsed = parse(words, "sfnv")?;
    let [pool, mountpoint] = &parsed.paths[..] else {
        bail!(Usage(
            "mount.fuse.varve POOL DIRECTORY [-o OPTIONS]; made for mount(8), see varve mount".into()
        ));
    };
    if parsed.has('f') {
        // Everything but the mount itself.
        return Ok(());
    }
    if options::asks_remount(&parsed.options) {
        return remount::run(Some(pool), mountpoint, &parsed.options, true).map(|_| ());
    }
    let args = MountArgs {
        pool: pool.clone(),
        mountpoint: mountpoint.clone(),
        options: parsed.options.clone(),
        sloppy: parsed.has('s'),
        ..MountArgs::default()
    };
    mount::run(&args)?;
    if parsed.has('v') {
        crate::show(&format!("{} is mounted on {}\n", pool.shown(), mountpoint.shown()))?;
    }
    Ok(())
}

fn run_unmount(words: &[OsString]) -> Result<()> {
    // -f (force) ends nothing early here: what was written is kept.
    let parsed = parse(words, "nlfvr")?;
    let [mountpoint] = &parsed.paths[..] else {
        bail!(Usage("umount.fuse.varve DIRECTORY; made for umount(8), see varve unmount".into()));
    };
    if parsed.has('l') {
        return detach(mountpoint);
    }
    // Nor is anything refused that umount(8) without this helper would do.
    match unmount::unmount("umount.fuse.varve", mountpoint, Some(PATIENCE), true) {
        Err(error) if parsed.has('r') => {
            remount::run(None, mountpoint, &["remount,ro".to_owned()], false)?;
            crate::tell(&format!("umount.fuse.varve: {error:#}; it is read-only now"));
        }
        result => match result? {
            unmount::Ended::Closed => {}
            unmount::Ended::InUse(why) => crate::tell(&format!("umount.fuse.varve: {why}")),
            unmount::Ended::Lost(loss) => bail!("{} is unmounted, but {loss}", mountpoint.shown()),
        },
    }
    if parsed.has('v') {
        crate::show(&format!("{} is unmounted\n", mountpoint.shown()))?;
    }
    Ok(())
}

/// `umount -l`: gone from the tree at once, and closed when the last user has gone.
fn detach(mountpoint: &Path) -> Result<()> {
    let path = mountinfo::resolve(mountpoint)?;
    if !MountTable::read()?.at(&path).is_some_and(|mount| mount.is_ours()) {
        bail!("no pool is mounted on {}", mountpoint.shown());
    }
    varve_mount::unmount(&path, true)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Parsed> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        parse(&words, "sfnv")
    }

    // Goal: what libmount writes is understood. Method: its command lines, values joined to their letter and apart.
    #[test]
    fn command_lines_of_libmount_are_understood() {
        let parsed = parse_line("/pool /mnt -sv -o rw,noatime -t fuse.varve").expect("a line of libmount's");
        assert_eq!(parsed.paths, [PathBuf::from("/pool"), PathBuf::from("/mnt")]);
        assert_eq!(parsed.options, ["rw,noatime"]);
        assert_eq!(parsed.letters, ['s', 'v']);
        assert_eq!(parse_line("-n /pool /mnt -oro").expect("also right").options, ["ro"]);
    }

    // Goal: a path may be any bytes, an option not. Method: a byte that is no UTF-8 in either.
    #[test]
    fn paths_are_any_bytes() {
        let words = |path: &[u8], option: &[u8]| {
            [path, b"/mnt", b"-o", option].map(|word| OsStr::from_bytes(word).to_owned())
        };
        let parsed = parse(&words(b"/pool\xff", b"ro"), "sfnv").expect("a path");
        assert_eq!(parsed.paths[0].as_os_str().as_bytes(), b"/pool\xff");
        assert!(parse(&words(b"/pool", b"log=/\xff"), "sfnv").is_err());
        assert!(parse(&words(b"-\xff", b"ro"), "sfnv").is_err());
    }

    // Goal: what is not understood is refused. Method: an unknown letter, a value that is missing, a namespace.
    #[test]
    fn other_command_lines_are_refused() {
        for line in ["/pool /mnt -x", "/pool /mnt -o", "/pool /mnt -N 5"] {
            assert!(parse_line(line).is_err(), "{line}");
        }
    }
}
