//! Access times.

use super::*;

fn accessed(f: &Fixture, ino: InodeId) -> Timestamp {
    f.fs.getattr(ino).unwrap().atime
}

/// Goal: relatime as mount(8) describes it. Method: accesses of a file that was just made, was accessed since, was
/// written to since, had its mode changed since, and was last accessed a day ago; the change counter stays, for an
/// access is no change.
#[test]
fn relative_access_times() {
    let f = Fixture::new(64 * MIB);
    let file = f.create(b"file");
    let note = || {
        let before = accessed(&f, file);
        f.fs.note_access(file, AccessRule::Relative).unwrap();
        accessed(&f, file) != before
    };
    assert!(note(), "the first access after it was made");
    assert!(!note(), "nothing has changed since");
    f.write(file, 0, b"data");
    assert!(note() && !note(), "written to since, though not logged yet");
    f.fs.setattr(Caller::ROOT, file, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    assert!(note() && !note(), "its inode has changed since");
    let ctime = f.fs.getattr(file).unwrap().ctime;
    let now = accessed(&f, file);
    let day = 24 * 60 * 60;
    let at = Timestamp { seconds: now.seconds - day - 1, ..now };
    let set = SetAttr { atime: Some(SetTime::At(at)), mtime: Some(SetTime::At(at)), ..SetAttr::default() };
    f.fs.setattr(Caller::ROOT, file, set).unwrap();
    assert_eq!(accessed(&f, file), at, "what was set counts, not what was noted before");
    assert!(f.fs.getattr(file).unwrap().ctime > ctime);
    assert!(note());
    let before = accessed(&f, file);
    f.fs.note_access(file, AccessRule::Always).unwrap();
    assert!(accessed(&f, file) > before, "always means always");
    f.check();
}

/// Goal: notes cost nothing until there is a reason to write, and survive sync and close. Method: the place in the log
/// before and after a note; a kill right after it, which may lose it; a sync and a kill; a close; more notes than wait
/// at most, on files that nobody holds.
#[test]
fn noted_accesses_are_logged_lazily() {
    let mut f = Fixture::new(64 * MIB);
    let file = f.create(b"file");
    f.fs.sync().unwrap();
    let position = f.fs.position();
    f.fs.note_access(file, AccessRule::Relative).unwrap();
    assert_eq!(f.fs.position(), position, "a note is not logged at once");
    let noted = accessed(&f, file);
    f.fs.sync().unwrap();
    f.kill();
    assert_eq!(accessed(&f, file), noted);
    f.write(file, 0, b"data");
    f.fs.note_access(file, AccessRule::Relative).unwrap();
    let noted = accessed(&f, file);
    f.reopen();
    assert_eq!(accessed(&f, file), noted);
    assert_eq!(f.read_all(file), b"data");

    let files: Vec<InodeId> = (0..3000).map(|n| f.create(format!("{n}").as_bytes())).collect();
    for file in &files {
        f.fs.note_access(*file, AccessRule::Relative).unwrap();
    }
    let noted: Vec<Timestamp> = files.iter().map(|file| accessed(&f, *file)).collect();
    f.reopen();
    assert_eq!(files.iter().map(|file| accessed(&f, *file)).collect::<Vec<_>>(), noted);
    f.check();
}

/// Goal: a note about a file that goes away does no harm. Method: files unlinked after a note, one of them open, then
/// sync and close.
#[test]
fn notes_about_deleted_files_are_forgotten() {
    let mut f = Fixture::new(64 * MIB);
    let (gone, open) = (f.create(b"gone"), f.create(b"open"));
    f.fs.open_inode(Caller::ROOT, open, false).unwrap();
    for (ino, name) in [(gone, b"gone"), (open, b"open")] {
        f.fs.note_access(ino, AccessRule::Relative).unwrap();
        f.fs.unlink(ROOT, name).unwrap();
    }
    f.fs.sync().unwrap();
    f.check();
    f.fs.note_access(open, AccessRule::Always).unwrap();
    f.fs.release_inode(open).unwrap();
    refused(f.fs.note_access(open, AccessRule::Always), 2);
    f.reopen();
    f.check();
}
