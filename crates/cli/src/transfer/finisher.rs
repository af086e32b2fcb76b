//! The second thread of an import: writes contents out, and only then gives files their times.
//!
//! The modification time is what says that a file is whole. A time is therefore set only when the file's contents have
//! their place in the log: what survives a crash is a beginning of the log, so no file ever has its time without its
//! contents. Files are finished many at a time, so that their contents go out together.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use varve_fs::{Caller, FileFlags, Filesystem, FsError, InodeId, SetAttr, SetTime, Timestamp};

/// Files finished together, at most.
const FILES_PER_BATCH: usize = 2048;
/// Bytes of contents finished together, about.
const BYTES_PER_BATCH: u64 = 32 << 20;
/// Batches that wait: the copying waits when they are more.
const BATCHES_WAITING_MAX: usize = 2;

/// A file whose contents have been handed over.
pub struct Written {
    pub ino: InodeId,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    /// What it gets when it has its times: they may forbid any other change.
    pub flags: Option<FileFlags>,
}

/// The thread, and the batch that gathers.
pub struct Finisher {
    sender: Option<SyncSender<Vec<Written>>>,
    thread: Option<JoinHandle<Result<(), FsError>>>,
    batch: Vec<Written>,
    bytes: u64,
    /// How often what is finished is made durable.
    interval: Duration,
    /// When the last batch was handed over.
    sent: Instant,
}

impl Finisher {
    /// Starts it.
    pub fn start(filesystem: Arc<Filesystem>, interval: Duration) -> std::io::Result<Finisher> {
        let (sender, receiver) = sync_channel(BATCHES_WAITING_MAX);
        let thread = thread::Builder::new()
            .name("finisher".into())
            .spawn(move || run(&filesystem, interval, &receiver))?;
        Ok(Finisher {
            sender: Some(sender),
            thread: Some(thread),
            batch: Vec::new(),
            bytes: 0,
            interval,
            sent: Instant::now(),
        })
    }

    /// Hands a file over. False: the thread has met an error, which [`Finisher::end`] gives.
    pub fn push(&mut self, file: Written, bytes: u64) -> bool {
        self.batch.push(file);
        self.bytes += bytes;
        let full = self.batch.len() >= FILES_PER_BATCH
            || self.bytes >= BYTES_PER_BATCH
            || self.sent.elapsed() >= self.interval;
        !full || self.send()
    }

    fn send(&mut self) -> bool {
        (self.bytes, self.sent) = (0, Instant::now());
        let batch = std::mem::take(&mut self.batch);
        self.sender.as_ref().is_some_and(|sender| sender.send(batch).is_ok())
    }

    /// Finishes what was handed over.
    pub fn end(mut self) -> Result<(), FsError> {
        // An error of the thread comes out below.
        self.send();
        drop(self.sender.take());
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(()),
        }
    }
}

fn run(filesystem: &Filesystem, interval: Duration, batches: &Receiver<Vec<Written>>) -> Result<(), FsError> {
    let mut committed = Instant::now();
    while let Ok(batch) = batches.recv() {
        filesystem.flush_all()?;
        for file in batch {
            let times = SetAttr {
                atime: Some(SetTime::At(file.atime)),
                mtime: Some(SetTime::At(file.mtime)),
                ..SetAttr::default()
            };
            filesystem.setattr(Caller::ROOT, file.ino, times)?;
            if let Some(flags) = file.flags {
                filesystem.set_flags(Caller::ROOT, file.ino, flags)?;
            }
        }
        if committed.elapsed() >= interval {
            filesystem.commit(filesystem.position())?;
            committed = Instant::now();
        }
    }
    Ok(())
}
