//! `varve install-helper`: makes `mount -t fuse.varve`, fstab and systemd know this program.
//!
//! The helpers are shell scripts of two lines that run this program; a file that this command did not write is never
//! overwritten and never removed.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::names::Shown;
use crate::{Outcome, Usage, show};

/// Teach mount(8), fstab and systemd about pools.
///
/// Writes /sbin/mount.fuse.varve and /sbin/umount.fuse.varve, which mount(8) and umount(8) run, and,
/// where there is systemd, the unit /etc/systemd/system/varve@.service; says what it wrote. Needs
/// root. Afterwards these work:
///
///   mount -t fuse.varve POOL DIRECTORY -o OPTIONS
///   umount DIRECTORY                              (returns when everything is durable)
///   mount -o remount,ro DIRECTORY
///   POOL DIRECTORY fuse.varve defaults,nofail,x-systemd.mount-timeout=infinity 0 0
///                                                 (a line of /etc/fstab; without the timeout systemd
///                                                 ends a mount whose recovery takes 90 s)
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct InstallArgs {
    /// Remove what this command wrote
    #[arg(long)]
    pub remove: bool,
    /// Put the files below this directory instead of / (for packages and tests)
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
    /// The program that the files name [default: this one]
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
}

/// By this line our files are known.
const MARK: &str = "# Written by varve install-helper; varve install-helper --remove takes it away.";

/// A file to install: where, whether it is a program, and what it says. `@PROGRAM@` stands for the program.
struct Installed {
    path: &'static str,
    program: bool,
    text: &'static str,
}

const HELPERS: [Installed; 2] = [
    Installed {
        path: "sbin/mount.fuse.varve",
        program: true,
        text: "#!/bin/sh
@MARK@
[ -x @PROGRAM@ ] || { echo \"mount.fuse.varve: \"@PROGRAM@\" is gone; run varve install-helper again\" >&2; exit 32; }
exec @PROGRAM@ mount-helper \"$@\"
",
    },
    Installed {
        path: "sbin/umount.fuse.varve",
        program: true,
        text: "#!/bin/sh
@MARK@
[ -x @PROGRAM@ ] || { echo \"umount.fuse.varve: \"@PROGRAM@\" is gone; use umount -i\" >&2; exit 32; }
exec @PROGRAM@ unmount-helper \"$@\"
",
    },
];

const UNIT: Installed = Installed {
    path: "etc/systemd/system/varve@.service",
    program: false,
    text: "@MARK@
# One mount as a service, for those who do not want it in /etc/fstab. The name is the directory:
#   mkdir -p /etc/varve
#   echo 'POOL=/srv/pool.img' > \"/etc/varve/$(systemd-escape --path /mnt/pool).conf\"
#   systemctl enable --now \"varve@$(systemd-escape --path /mnt/pool).service\"
# OPTIONS= in the same file is what mount -o takes; without it: rw.
[Unit]
Description=VarveFS pool on %f
RequiresMountsFor=%f
After=local-fs.target

[Service]
Type=notify
Environment=OPTIONS=rw
EnvironmentFile=/etc/varve/%i.conf
ExecStart=@PROGRAM@ mount --foreground -o ${OPTIONS} ${POOL} %f
ExecStop=@PROGRAM@ unmount %f
# It has started when the mount answers; after a crash the pool is recovered first, for as long as that takes.
TimeoutStartSec=infinity
# The pool is closed in an orderly way on SIGTERM too; give it time to write.
TimeoutStopSec=5min
Restart=on-failure

[Install]
WantedBy=multi-user.target
",
};

/// Directories of systemd's own, one of which is there where it is.
const SYSTEMD: [&str; 2] = ["usr/lib/systemd/system", "lib/systemd/system"];

/// Runs the command.
pub fn run(args: &InstallArgs) -> Result<Outcome> {
    // Below another directory a package is being made: everything goes in.
    let wants_unit = args.root != Path::new("/") || SYSTEMD.iter().any(|dir| args.root.join(dir).is_dir());
    let files: Vec<&Installed> = HELPERS.iter().chain(wants_unit.then_some(&UNIT)).collect();
    if args.remove {
        return remove(&args.root);
    }
    let program = match &args.program {
        Some(path) if !path.is_absolute() => {
            bail!(Usage(format!("--program {} must be the whole path, from /", path.shown())))
        }
        Some(path) => path.clone(),
        None => std::env::current_exe().context("cannot find out where this program is")?,
    };
    // Before anything is written.
    for file in &files {
        refuse_strangers(&args.root.join(file.path))?;
    }
    for file in &files {
        let path = args.root.join(file.path);
        write(&path, &fill(file, &program)?, file.program)?;
        show(&format!("wrote {}\n", path.shown()))?;
    }
    let below = program.strip_prefix("/").map(|path| args.root.join(path));
    if !is_program(&program) && !below.is_ok_and(|path| is_program(&path)) {
        // Not an error: it may be installed after its helpers.
        show(&format!(
            "note: they run {}, where there is no program now; until there is, they fail\n",
            program.shown()
        ))?;
    }
    if args.root == Path::new("/") {
        if !wants_unit {
            show("no systemd here: its unit was left out\n")?;
        } else if Path::new("/run/systemd/system").is_dir() {
            show("now tell systemd: systemctl daemon-reload\n")?;
        }
        if program.starts_with("/tmp") || program.components().any(|part| part.as_os_str() == "target") {
            show(&format!(
                "note: they run {}; if that moves (cargo install --path crates/cli puts a copy elsewhere), run this \
                 again from there\n",
                program.shown()
            ))?;
        }
    }
    Ok(Outcome::Done)
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

fn remove(root: &Path) -> Result<Outcome> {
    let mut found = false;
    for file in HELPERS.iter().chain([&UNIT]) {
        let path = root.join(file.path);
        if !path.exists() {
            continue;
        }
        refuse_strangers(&path)?;
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.shown()))?;
        show(&format!("removed {}\n", path.shown()))?;
        found = true;
    }
    if !found {
        show("nothing of varve install-helper's is there\n")?;
    }
    Ok(Outcome::Done)
}

/// Fails if there is a file at `path` that this command did not write.
fn refuse_strangers(path: &Path) -> Result<()> {
    match fs::read(path) {
        Ok(bytes) if String::from_utf8_lossy(&bytes).contains(MARK) => Ok(()),
        Ok(_) => bail!(
            "{} was not written by varve install-helper, so it is left as it is; move it away first",
            path.shown()
        ),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.shown())),
    }
}

fn fill(file: &Installed, program: &Path) -> Result<String> {
    let program = program
        .to_str()
        .filter(|text| !text.contains(['\'', '"', '\n', '%', '\\', '$']))
        .with_context(|| format!("{} is no name that a script can hold; move varve", program.shown()))?;
    // systemd and the shell understand the same quotes.
    let quoted = if file.program { format!("'{program}'") } else { format!("\"{program}\"") };
    Ok(file.text.replace("@MARK@", MARK).replace("@PROGRAM@", &quoted))
}

/// Whole or not at all: a mount at boot must not find half a helper.
fn write(path: &Path, text: &str, program: bool) -> Result<()> {
    let what = || format!("cannot write {}", path.shown());
    let directory = path.parent().expect("the paths of the table have directories");
    fs::create_dir_all(directory).with_context(what)?;
    let temporary = path.with_extension("varve-new");
    let mode = if program { 0o755 } else { 0o644 };
    let written = fs::File::create(&temporary).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    });
    if written.is_err() {
        let _perhaps_never_made = fs::remove_file(&temporary);
    }
    written.map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            anyhow::anyhow!("you may not write {}; run this as root", path.shown())
        }
        _ => anyhow::anyhow!("cannot write {}: {error}", path.shown()),
    })
}
