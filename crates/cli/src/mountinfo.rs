//! What is mounted where, from the kernel's table. Nothing here touches a mount, which may be dead and hang or fail.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow};
use varve_mount::{AccessTimes, FILESYSTEM_TYPE, Flags};

use crate::names::{Shown, escape};

/// What statfs(2) calls every filesystem of FUSE (linux/magic.h).
const FUSE_SUPER_MAGIC: rustix::fs::FsWord = 0x6573_5546;

/// One line of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount {
    /// Device number of the mount; names its control socket.
    pub device: (u32, u32),
    /// Directory it is mounted on.
    pub mountpoint: PathBuf,
    /// Type, such as `ext4`.
    pub filesystem_type: String,
    /// What is mounted: for ours the pool's path, or what `fsname=` said.
    pub source: PathBuf,
    /// What holds at this place.
    pub flags: Flags,
    /// User and group whose process serves it; 0 if the type does not say.
    pub user_id: u32,
    /// See `user_id`.
    pub group_id: u32,
}

impl Mount {
    /// Whether it is a pool of ours.
    pub fn is_ours(&self) -> bool {
        self.filesystem_type == FILESYSTEM_TYPE
    }

    /// Whether the process that served it is gone: the kernel answers every request for it "not connected". Asks for
    /// the space, because attributes may come from the kernel's cache.
    pub fn is_dead(&self) -> bool {
        match rustix::fs::statvfs(&self.mountpoint) {
            Err(errno) => is_not_connected(&errno.into()),
            // Who is not let in, root included, hears nothing of it: the kernel answers with zeros, dead or not.
            Ok(space) => space.f_blocks == 0 && self.user_id != 0 && self.is_dead_to_its_user(),
        }
    }

    /// Asks for the space as the user whose mount it is. Only root can; `false` if it cannot be told.
    fn is_dead_to_its_user(&self) -> bool {
        let asked = Command::new("stat")
            .args(["--file-system", "--"])
            .arg(&self.mountpoint)
            .env("LC_ALL", "C")
            .uid(self.user_id)
            .gid(self.group_id)
            .stdin(Stdio::null())
            .output();
        let words = io::Error::from(rustix::io::Errno::NOTCONN).to_string();
        let words = words.split(" (").next().unwrap_or_default().to_owned();
        asked.is_ok_and(|asked| {
            !asked.status.success() && String::from_utf8_lossy(&asked.stderr).contains(&words)
        })
    }
}

/// Whether an error means that the process behind a mount is gone.
pub fn is_not_connected(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(rustix::io::Errno::from_raw_os_error),
        Some(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED)
    )
}

/// The table, mostly in the order of mounting.
pub struct MountTable {
    mounts: Vec<Mount>,
    /// Of each.
    numbers: Vec<Numbers>,
}

/// How a mount hangs together with others.
struct Numbers {
    id: u32,
    /// Of the mount that its directory is in.
    parent: u32,
    /// What is mounted in one mount of a group, or unmounted, is so in all of it.
    group: Option<u32>,
    /// So it is here with what is done in some other group.
    follows: bool,
}

impl MountTable {
    /// Reads it.
    pub fn read() -> Result<MountTable> {
        let path = "/proc/self/mountinfo";
        let text = std::fs::read(path).with_context(|| format!("cannot read {path}"))?;
        Ok(MountTable::parse(&text))
    }

    /// That of another process, which may see other mounts.
    pub fn read_of(process: u32) -> Result<MountTable> {
        let path = format!("/proc/{process}/mountinfo");
        let text = std::fs::read(&path).with_context(|| format!("cannot read {path}"))?;
        Ok(MountTable::parse(&text))
    }

    fn parse(text: &[u8]) -> MountTable {
        let lines = text.split(|byte| *byte == b'\n');
        let (mounts, numbers) = lines.filter_map(|line| Some((parse_line(line)?, numbers(line)?))).unzip();
        MountTable { mounts, numbers }
    }

    /// Directories on which the same is mounted. Not all that has its number: when it has ended, that may be another's.
    fn of(&self, of: &Mount) -> impl Iterator<Item = String> {
        let is_same = |mount: &&Mount| mount.device == of.device && mount.source == of.source;
        self.mounts.iter().filter(is_same).map(|mount| mount.mountpoint.shown())
    }

    /// Whether what is mounted on `path`, topmost, is still mounted in another place here when it has been unmounted there.
    pub fn stays_elsewhere(&self, path: &Path) -> bool {
        let Some(here) = self.mounts.iter().rposition(|mount| mount.mountpoint == path) else { return false };
        let is_same = |at: usize| {
            let (mount, of) = (&self.mounts[at], &self.mounts[here]);
            mount.device == of.device && mount.source == of.source
        };
        (0..self.mounts.len()).any(|at| at != here && is_same(at) && !self.goes_with(at, here))
    }

    /// Whether the kernel may unmount `at` together with `here`: their directories lie in mounts that show the same and share what is mounted in
    /// them (mount_namespaces(7)). Not whether they are the same directory there.
    fn goes_with(&self, at: usize, here: usize) -> bool {
        let (at, here) = (&self.numbers[at], &self.numbers[here]);
        let parent = |of: &Numbers| self.numbers.iter().find(|other| other.id == of.parent);
        match (parent(at), parent(here)) {
            _ if at.parent == here.parent => false,
            (Some(there), Some(parent)) => {
                parent.group.is_some() && (there.follows || there.group == parent.group)
            }
            // It lies above what can be seen from here.
            _ => true,
        }
    }

    /// What is mounted exactly on `path`, topmost.
    pub fn at(&self, path: &Path) -> Option<&Mount> {
        self.mounts.iter().rev().find(|mount| mount.mountpoint == path)
    }

    /// The mount that an absolute path without symbolic links lies in. `None`: the table does not have it.
    pub fn containing(&self, path: &Path) -> Option<&Mount> {
        let has = |id: u32| self.numbers.iter().any(|numbers| numbers.id == id);
        // In a chroot the mount that `/` lies in is not in the table, unless `/` is its root: then `None` stands for that, and what is mounted
        // in it has a parent that is not there.
        let mut here: Option<usize> = None;
        // As the kernel goes along the path: from a directory into what is mounted on it, which hides all that is mounted below it
        // in the same mount.
        for _ in 0..self.mounts.len() {
            let inside = |at: &usize| {
                let Numbers { id, parent, .. } = self.numbers[*at];
                let is_next = match here {
                    None => id == parent || !has(parent),
                    Some(here) => parent == self.numbers[here].id && id != parent,
                };
                is_next && path.starts_with(&self.mounts[*at].mountpoint)
            };
            let depth = |at: &usize| self.mounts[*at].mountpoint.components().count();
            match (0..self.mounts.len()).filter(inside).min_by_key(depth) {
                Some(next) => here = Some(next),
                None => break,
            }
        }
        here.map(|here| &self.mounts[here])
    }

    /// Why nothing is known of the pool that `path` lies in, if it may lie in one: its filesystem is of FUSE, and no mount of that is in the
    /// table, as in a chroot into a directory of a pool that is mounted outside. Asks the filesystem.
    pub fn unseen(&self, path: &Path) -> Option<anyhow::Error> {
        let device = device(&path.symlink_metadata().ok()?);
        let is_seen = self.mounts.iter().any(|mount| mount.device == device);
        if is_seen || rustix::fs::statfs(path).ok()?.f_type != FUSE_SUPER_MAGIC {
            return None;
        }
        Some(anyhow!(
            "{} lies in a FUSE filesystem whose mount cannot be seen from here, as in a chroot into a directory of it; run this outside",
            path.shown()
        ))
    }

    /// What is mounted on directories of what is mounted on `path`, topmost.
    pub fn mounted_in(&self, path: &Path) -> impl Iterator<Item = &Mount> {
        let here =
            self.mounts.iter().rposition(|mount| mount.mountpoint == path).map(|at| self.numbers[at].id);
        let is_inside = move |numbers: &Numbers| Some(numbers.parent) == here && numbers.id != numbers.parent;
        self.mounts
            .iter()
            .zip(&self.numbers)
            .filter(move |(_, numbers)| is_inside(numbers))
            .map(|(mount, _)| mount)
    }

    /// Mounts of a device by this path.
    pub fn of_source<'a>(&'a self, source: &'a Path) -> impl Iterator<Item = &'a Mount> {
        self.mounts.iter().filter(move |mount| mount.source == source)
    }

    /// Mounts of ours.
    pub fn ours(&self) -> impl Iterator<Item = &Mount> {
        self.mounts.iter().filter(|mount| mount.is_ours())
    }
}

/// Where something is mounted, in words.
pub struct Places {
    /// Here, and as other processes see it whose tables are their own (containers) and can be read. Each table is named once, by one of its
    /// processes.
    pub seen: Vec<String>,
    /// Processes in other mount namespaces of which no table shows all: whoever can be asked there is in a chroot.
    pub unseen: Vec<String>,
}

/// Where the same is mounted as `of`.
pub fn everywhere(of: &Mount) -> Places {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let mut namespaces = BTreeSet::from_iter(namespace("self"));
    let mut seen: Vec<String> = MountTable::read().map(|table| table.of(of).collect()).unwrap_or_default();
    let mut tables = BTreeSet::from([seen.clone()]);
    let mut unseen = Vec::new();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok());
    // The table of a process in a chroot lacks what lies outside of it: another of its namespace is asked first.
    let in_chroot =
        |id: &u32| std::fs::read_link(format!("/proc/{id}/root")).is_ok_and(|root| root != Path::new("/"));
    let (confined, free): (Vec<u32>, Vec<u32>) = ids.partition(in_chroot);
    let confined = confined.into_iter().map(|id| (id, true));
    for (id, is_confined) in free.into_iter().map(|id| (id, false)).chain(confined) {
        // Of a process of another user it may not be told.
        let namespace = namespace(&id.to_string());
        let is_known = match &namespace {
            Some(namespace) if is_confined => namespaces.contains(namespace),
            Some(namespace) => !namespaces.insert(namespace.clone()),
            None => false,
        };
        if is_known {
            continue;
        }
        // It may have ended meanwhile.
        let Ok(text) = std::fs::read(format!("/proc/{id}/mountinfo")) else { continue };
        let name = std::fs::read(format!("/proc/{id}/comm")).unwrap_or_default();
        let process = format!("process {id} ({})", escape(name.trim_ascii_end()));
        let there: Vec<String> = MountTable::parse(&text).of(of).collect();
        if there.is_empty() && is_confined && namespace.is_some() {
            unseen.push(process.clone());
        }
        if there.is_empty() || !tables.insert(there.clone()) {
            continue;
        }
        seen.extend(there.iter().map(|place| format!("{place} as {process} sees it")));
    }
    Places { seen, unseen }
}

/// The number of the device that something lies on.
pub fn device(metadata: &Metadata) -> (u32, u32) {
    (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()))
}

/// The first two fields of a line, and the optional ones, from the seventh up to a dash.
fn numbers(line: &[u8]) -> Option<Numbers> {
    let mut fields = line.split(|byte| *byte == b' ').map(|field| str::from_utf8(field).unwrap_or_default());
    let (id, parent) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let (mut group, mut follows) = (None, false);
    for field in fields.skip(4).take_while(|field| *field != "-") {
        match field.split_once(':') {
            Some(("shared", number)) => group = number.parse().ok(),
            Some(("master", _)) => follows = true,
            _ => {}
        }
    }
    Some(Numbers { id, parent, group, follows })
}

/// `36 35 98:0 /root /mnt rw,noatime shared:1 - fuse.varve /pool.img rw,user_id=0`. `None`: not such a line.
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let mountpoint = path(fields.nth(1)?);
    let mut flags = parse_flags(&String::from_utf8_lossy(fields.next()?));
    fields.find(|field| *field == b"-")?;
    let filesystem_type = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = path(fields.next()?);
    let super_options = fields.next().map(String::from_utf8_lossy).unwrap_or_default();
    let has = |wanted| super_options.split(',').any(|option| option == wanted);
    flags.read_only |= has("ro");
    (flags.durable, flags.durable_names) = (has("sync"), has("dirsync"));
    let number = |name| super_options.split(',').find_map(|option| option.strip_prefix(name)?.parse().ok());
    Some(Mount {
        device: (major.parse().ok()?, minor.parse().ok()?),
        mountpoint,
        filesystem_type,
        source,
        flags,
        user_id: number("user_id=").unwrap_or(0),
        group_id: number("group_id=").unwrap_or(0),
    })
}

fn parse_flags(options: &str) -> Flags {
    // The kernel shows no word for what mount(8) calls strictatime.
    let mut flags = Flags { access_times: AccessTimes::Always, ..Flags::default() };
    for option in options.split(',') {
        match option {
            "ro" => flags.read_only = true,
            "nodev" => flags.no_dev = true,
            "nosuid" => flags.no_suid = true,
            "noexec" => flags.no_exec = true,
            "nosymfollow" => flags.no_symlinks = true,
            "noatime" => flags.access_times = AccessTimes::Never,
            "relatime" => flags.access_times = AccessTimes::Relative,
            "nodiratime" => flags.no_directory_access_times = true,
            _ => {}
        }
    }
    flags
}

/// A path of the table: blanks, tabs, newlines and backslashes are written as a backslash and three octal digits.
fn path(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        let digits =
            rest.first_chunk::<3>().filter(|digits| digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match (byte, digits) {
            (b'\\', Some(digits)) => {
                let code = digits.iter().fold(0u32, |code, digit| code * 8 + u32::from(digit - b'0'));
                bytes.push(code as u8);
                rest = &rest[3..];
            }
            _ => bytes.push(*byte),
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// An absolute path without symbolic links, also of a mount point whose mount is dead and cannot be looked at.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if is_not_connected(&error) => {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(error) };
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            Ok(parent.canonicalize()?.join(name))
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 28 0:21 / /proc rw,nosuid - proc proc rw
28 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
90 28 0:50 / /mnt/a\\040b rw,nodev,relatime,nosymfollow shared:9 master:2 - fuse.varve /pools/one\\134.img rw,sync,dirsync,user_id=1000,group_id=1000
91 90 0:51 / /mnt/a\\040b/inner rw - tmpfs tmpfs rw
92 28 0:52 / /mnt/twice rw - fuse.varve /pools/two rw,user_id=0
93 92 0:53 / /mnt/twice rw - tmpfs tmpfs rw
not a line
";

    fn table() -> MountTable {
        MountTable::parse(TABLE.as_bytes())
    }

    // Goal: a mount is not said to be in the places of another that has got its number since it ended. Method: one that is in two places, and
    // another pool with the same number.
    #[test]
    fn who_has_the_number_next_is_another() {
        let text = "\
22 1 0:50 / /a rw - fuse.varve /pools/one rw,user_id=0
23 1 0:50 /in /b rw - fuse.varve /pools/one rw,user_id=0
24 1 0:50 / /c rw - fuse.varve /pools/two rw,user_id=0
";
        let table = MountTable::parse(text.as_bytes());
        let places = |at: &str| table.of(table.at(Path::new(at)).expect("it is there")).collect::<Vec<_>>();
        assert_eq!(
            (places("/a"), places("/c")),
            (vec!["/a".to_owned(), "/b".to_owned()], vec!["/c".to_owned()])
        );
    }

    // Goal: what stays mounted when one place is unmounted is known, and what the kernel unmounts with it is not taken for that. Method: a
    // pool with one place; two in the same mount; two that lie over each other; two in mounts that share, that follow, or that do neither.
    #[test]
    fn other_places_are_told_from_those_that_go() {
        let stays = |lines: &[&str]| {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            MountTable::parse(text.as_bytes()).stays_elsewhere(Path::new("/a/mnt"))
        };
        let root = "20 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw";
        let mount = |id: u32, parent: u32, at: &str| {
            format!("{id} {parent} 0:50 / {at} rw shared:9 - fuse.varve /pool rw,user_id=0")
        };
        let dir =
            |id: u32, at: &str, sharing: &str| format!("{id} 20 8:1 /a {at} rw {sharing}- ext4 /dev/sda1 rw");
        let (a, b) = (mount(30, 20, "/a/mnt"), mount(31, 20, "/b"));
        assert!(!stays(&[root, &a]));
        assert!(!stays(&[root, &b]));
        assert!(stays(&[root, &a, &b]) && stays(&[root, &b, &a]));
        assert!(!stays(&[root, &a, "31 20 0:51 / /b rw - fuse.varve /pool rw,user_id=0"]), "another device");
        assert!(stays(&[root, &a, &mount(31, 30, "/a/mnt")]));
        let (there, inside) = (mount(41, 40, "/b/mnt"), mount(30, 21, "/a/mnt"));
        let beside = |ours: &str, theirs: &str| {
            stays(&[root, &dir(21, "/a", ours), &dir(40, "/b", theirs), &inside, &there])
        };
        assert!(!beside("shared:5 ", "shared:5 "));
        assert!(!beside("shared:5 ", "master:5 "));
        assert!(!beside("shared:5 ", "shared:6 master:5 "));
        assert!(beside("shared:5 ", "shared:6 "));
        assert!(beside("master:5 ", "shared:5 "));
        assert!(beside("", ""));
        assert!(!stays(&[root, &inside, &there]), "their directories cannot be seen");
    }

    // Goal: the kernel's table is understood: optional fields, escapes, owners. Method: a table with each.
    #[test]
    fn lines_are_parsed() {
        let table = table();
        let mount = table.at(Path::new("/mnt/a b")).expect("it is in the table");
        assert_eq!(
            *mount,
            Mount {
                device: (0, 50),
                mountpoint: "/mnt/a b".into(),
                filesystem_type: "fuse.varve".into(),
                source: "/pools/one\\.img".into(),
                flags: Flags {
                    no_dev: true,
                    no_symlinks: true,
                    durable: true,
                    durable_names: true,
                    ..Flags::default()
                },
                user_id: 1000,
                group_id: 1000,
            }
        );
        assert_eq!(table.ours().count(), 2);
        assert_eq!(table.at(Path::new("/mnt")), None);
    }

    // Goal: what is mounted over a directory hides what was mounted below it, in whatever order the table has them. Method: two mounts,
    // one in the other, and a third over both; a mount that was moved behind one that is younger; a root that came last.
    #[test]
    fn what_is_hidden_contains_nothing() {
        let line =
            |id: u32, parent: u32, at: &str| format!("{id} {parent} 0:{id} / {at} rw - fuse.varve pool rw\n");
        let found = |lines: &[(u32, u32, &str)], path: &str| {
            let text: String = lines.iter().map(|(id, parent, at)| line(*id, *parent, at)).collect();
            MountTable::parse(text.as_bytes()).containing(Path::new(path)).map(|mount| mount.device.1)
        };
        let nested = [(40, 1, "/"), (50, 40, "/a"), (51, 50, "/a/b")];
        let all = |path| found(&nested, path);
        assert_eq!((all("/a/b/x"), all("/a/x"), all("/x")), (Some(51), Some(50), Some(40)));
        let over = [&nested[..], &[(52, 50, "/a"), (53, 40, "/c")]].concat();
        let all = |path| found(&over, path);
        assert_eq!((all("/a/b/x"), all("/a/x"), all("/c")), (Some(52), Some(52), Some(53)));
        let moved = [(40, 1, "/"), (50, 52, "/a/b"), (52, 40, "/a")];
        let all = |path| found(&moved, path);
        assert_eq!((all("/a/b/x"), all("/a/x")), (Some(50), Some(52)));
        let late = [(22, 27, "/proc"), (27, 2, "/")];
        let all = |path| found(&late, path);
        assert_eq!((all("/proc/x"), all("/x")), (Some(22), Some(27)));
    }

    // Goal: in a chroot, whose table lacks the mount that `/` lies in, what is mounted is found all the same. Method: the table of one, with a
    // pool, one in that, and a third over a directory that has a mount; the mount of `/` has none of the numbers.
    #[test]
    fn a_chroot_has_mounts_without_a_root() {
        let text = "\
70 46 0:41 / /proc rw - proc proc rw
72 46 0:42 / /srv/n rw - fuse.varve /pools/n.img rw,user_id=0
73 72 0:43 / /srv/n/inner rw - fuse.varve /pools/inner.img rw,user_id=0
74 46 0:44 / /a/b rw - tmpfs tmpfs rw
75 46 0:45 / /a rw - fuse.varve /pools/over.img rw,user_id=0
";
        let table = MountTable::parse(text.as_bytes());
        let found = |path: &str| table.containing(Path::new(path)).map(|mount| mount.device.1);
        assert_eq!(
            (found("/srv/n"), found("/srv/n/x"), found("/srv/n/inner/x")),
            (Some(42), Some(42), Some(43))
        );
        assert_eq!((found("/proc/x"), found("/a/b/x")), (Some(41), Some(45)));
        assert_eq!((found("/"), found("/srv"), found("/srv/nn")), (None, None, None));
    }

    // Goal: a path belongs to the innermost and topmost mount. Method: paths on the borders.
    #[test]
    fn paths_belong_to_the_innermost_mount() {
        let table = table();
        for (path, device) in [
            ("/mnt/a b", (0, 50)),
            ("/mnt/a b/x", (0, 50)),
            ("/mnt/a b/inner/x", (0, 51)),
            ("/mnt/a bc", (8, 1)),
            ("/mnt/twice/x", (0, 53)),
            ("/", (8, 1)),
        ] {
            assert_eq!(table.containing(Path::new(path)).map(|mount| mount.device), Some(device), "{path}");
        }
        for (path, inside) in [("/mnt/a b", &[(0, 51)][..]), ("/mnt/a b/inner", &[]), ("/mnt/a b/x", &[])] {
            let found: Vec<_> = table.mounted_in(Path::new(path)).map(|mount| mount.device).collect();
            assert_eq!(found, inside, "{path}");
        }
    }
}
